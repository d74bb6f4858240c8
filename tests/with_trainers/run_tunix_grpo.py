"""GRPO by Tunix asks for rewards of the prompts in order, and is resumed."""

import functools
import os

import grain
import jax
import optax
from flax import nnx
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.rl.rollout.mock_rollout import MockRollout

from gristmill import loader

decoder = loader.ExampleDecoder({"text": loader.FixedFeature(bytes)})


def decode(record):
    (text,) = decoder([record])["text"]
    return {"prompts": text.decode()}


records = loader.open("data/demo")
dataset = grain.MapDataset.source(records).shuffle(seed=42).map(decode).batch(4)


class Model(nnx.Module):
    """Knows no more than the token before."""

    def __init__(self):
        self.embed = nnx.Embed(256, 16, rngs=nnx.Rngs(0))
        self.out = nnx.Linear(16, 256, rngs=nnx.Rngs(1))

    def __call__(self, tokens, positions, cache, attention_mask):
        return self.out(self.embed(tokens)), cache


class Bytes:
    """A tokenizer of ASCII: no text has the tokens of padding and of the end."""

    bos_id, eos_id, pad_id = (staticmethod(lambda i=i: i) for i in (1, 1, 0))
    encode = staticmethod(lambda text: [*text.encode()])
    decode = staticmethod(lambda ids: bytes(ids).decode())


def train(output, steps):
    """Returns the prompts that rewards were asked for."""
    asked = []

    def reward(prompts, completions, **_):
        asked.extend(prompts[::2])
        return [float(len(each)) for each in completions]

    mesh = jax.sharding.Mesh(jax.devices(), ("fsdp",))
    settings = RLTrainingConfig(
        actor_optimizer=optax.sgd(0.1),
        eval_every_n_steps=100,
        max_steps=steps,
        checkpoint_root_directory=os.path.abspath(output),
    )
    config = ClusterConfig(
        role_to_mesh=dict.fromkeys(Role, mesh),
        rollout_engine=functools.partial(
            MockRollout, min_generation_time=0, max_generation_time=0
        ),
        rollout_config=RolloutConfig(max_tokens_to_generate=8),
        training_config=settings,
    )
    cluster = RLCluster(actor=Model(), tokenizer=Bytes(), cluster_config=config)
    GRPOLearner(cluster, GRPOConfig(num_generations=2, beta=0.0), reward).train(dataset)
    return asked


expected = [prompt for step in range(6) for prompt in dataset[step]["prompts"]]
assert train("whole", 6) == expected
assert train("parts", 3) == expected[:12]
assert train("parts", 6) == expected[12:]
