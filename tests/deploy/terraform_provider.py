"""A stand-in for Terraform's provider of Google Cloud: its schema, and plans, no cloud.

Terraform itself talks to it, in version 5 of its plugin protocol, so what it validates
and plans is its own work. tests/deploy/google_provider.json has the schema of what
deploy/terraform uses: names, types and what is required, as the published bindings of
the provider's version 6.50 have them (cdktf-cdktf-provider-google 16.12).
"""

import concurrent.futures
import json
import os

import grpc
import msgpack
from google.protobuf import descriptor_pb2, json_format, message_factory

from tests.support.distributions import ROOT

SCHEMA = ROOT / "tests" / "deploy" / "google_provider.json"
# Both from here: the second has the first's resources, and more.
_NAMES = (
    "registry.terraform.io/hashicorp/google",
    "registry.terraform.io/hashicorp/google-beta",
)

# The protocol, as far as it is used.
_PLUGIN = json_format.Parse(
    (SCHEMA.parent / "terraform_plugin.json").read_text("utf-8"),
    descriptor_pb2.FileDescriptorProto(),
)
M = message_factory.GetMessages([_PLUGIN])
UNKNOWN = msgpack.ExtType(0, b"\x00")
_LIST = 2


def _block(about):
    required = about.get("required", ())
    computed = about.get("computed", ())
    return M["Block"](
        attributes=[
            M["Attribute"](
                name=name,
                type=json.dumps(kind).encode(),
                required=name in required,
                optional=name not in required,
                computed=name in computed and name not in required,
            )
            for name, kind in about.get("attributes", {}).items()
        ],
        block_types=[
            M["NestedBlock"](
                type_name=name,
                block=_block(block),
                nesting=_LIST,
                min_items=block["min"],
                max_items=block["max"],
            )
            for name, block in about.get("blocks", {}).items()
        ],
    )


def _known(kind, planned):
    """Returns what the service would compute, where a plan should show it."""
    if kind == "google_service_account":
        email = f"{planned['account_id']}@my-project.iam.gserviceaccount.com"
        name = f"projects/my-project/serviceAccounts/{email}"
        return {"email": email, "member": f"serviceAccount:{email}", "name": name}
    return {}


# What is there already: a source of data reads it.
_THERE = {
    "number": "123456",
    "email_address": "service-123456@gs-project-accounts.iam.gserviceaccount.com",
}
_DATA = "data_"


class TerraformProvider:
    """The provider; use it in a `with` statement.

    Attributes:
        environment: Variables that lead Terraform to it.
    """

    def __init__(self):
        self._schema = json.loads(SCHEMA.read_text("utf-8"))
        pool = concurrent.futures.ThreadPoolExecutor(max_workers=4)
        self._server = grpc.server(pool)
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                getattr(self, method.name),
                request_deserializer=M[method.input_type[1:]].FromString,
                response_serializer=M[method.output_type[1:]].SerializeToString,
            )
            for method in _PLUGIN.service[0].method
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("tfplugin5.Provider", handlers)]
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        attached = {
            "Protocol": "grpc",
            "ProtocolVersion": 5,
            "Pid": os.getpid(),
            "Test": True,
            "Addr": {"Network": "tcp", "String": f"127.0.0.1:{port}"},
        }
        self.environment = {
            "TF_REATTACH_PROVIDERS": json.dumps(dict.fromkeys(_NAMES, attached)),
            "CHECKPOINT_DISABLE": "1",
            "TF_CLI_CONFIG_FILE": os.devnull,
        }

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *error):
        self._server.stop(None).wait()

    # The names are the protocol's.
    def GetSchema(self, request, context):  # noqa: N802
        schemas = {
            name: M["Schema"](block=_block(about))
            for name, about in self._schema.items()
        }
        provider = schemas.pop("provider")
        resources, sources = (
            [
                M["SchemaEntry"](key=name.removeprefix(_DATA), value=schema)
                for name, schema in schemas.items()
                if name.startswith(_DATA) == is_data
            ]
            for is_data in (False, True)
        )
        return M["GetSchema"](
            provider=provider, resource_schemas=resources, data_source_schemas=sources
        )

    def PrepareProviderConfig(self, request, context):  # noqa: N802
        return M["Prepared"](prepared_config=request.config)

    def Configure(self, request, context):  # noqa: N802
        return M["Diagnostics"]()

    ValidateResourceTypeConfig = ValidateDataSourceConfig = Configure

    def ReadDataSource(self, request, context):  # noqa: N802
        state = msgpack.unpackb(request.config.msgpack, raw=False)
        state |= {name: _THERE[name] for name in _THERE.keys() & state}
        return M["WasRead"](state=M["DynamicValue"](msgpack=msgpack.packb(state)))

    def PlanResourceChange(self, request, context):  # noqa: N802
        planned = msgpack.unpackb(request.proposed_new_state.msgpack, raw=False)
        if planned is not None:
            known = _known(request.type_name, planned)
            for name in self._schema[request.type_name].get("computed", ()):
                if planned[name] is None:
                    planned[name] = known.get(name, UNKNOWN)
        state = M["DynamicValue"](msgpack=msgpack.packb(planned))
        return M["Planned"](planned_state=state)

    def ApplyResourceChange(self, request, context):  # noqa: N802
        """Makes up what the service would have computed."""
        made = msgpack.unpackb(request.planned_state.msgpack, raw=False)
        kinds = self._schema[request.type_name]["attributes"]
        for name, value in made.items():
            if isinstance(value, msgpack.ExtType):
                made[name] = 1 if kinds[name] == "number" else f"made-{name}"
        return M["Applied"](new_state=M["DynamicValue"](msgpack=msgpack.packb(made)))

    def Stop(self, request, context):  # noqa: N802
        return M["Error"]()
