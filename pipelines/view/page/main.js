// Goes where the address says, and lets the keyboard go there.
"use strict";

const views = {
  dataset: datasetView,
  record: recordView,
  step: stepView,
  order: orderView,
  shard: shardView,
};
const TABS = ["dataset", "record", "step", "order"];
const KEYS = [
  ["1 to 4", "the views"],
  ["← and →, or p and n", "previous and next record, step or shard"],
  ["g", "go to a number"],
  ["?", "this list"],
  ["Esc", "close"],
];

let current = null;

// What all views need: of a mixture, that of one of its datasets.
function overview(of = "") {
  return ask("overview", { of });
}

// "#/record/train/17?step=3" -> a view, its parts and its query.
function destination(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = path
    .split("/")
    .filter((part) => part !== "")
    .map(decoded);
  return {
    view: Object.hasOwn(views, view) ? view : "dataset",
    parts,
    query: new URLSearchParams(query),
  };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Numbers in links are people's to write: what is not one is 0.
function wholeNumber(text) {
  const number = Number(text);
  return Number.isSafeInteger(number) && number >= 0 ? number : 0;
}

function replaceHash(hash) {
  history.replaceState(null, "", hash);
  go();
}

async function go() {
  const place = destination(location.hash);
  const main = document.getElementById("main");
  if (current === null || current.view !== place.view) {
    dropCharts(main);
    main.replaceChildren();
    const had = current;
    current = { view: place.view, update: views[place.view].enter(main) };
    if (had) {
      scrollTo(0, 0);
      main.focus({ preventScroll: true });
    }
  }
  const tab = views[place.view].parent || place.view;
  for (const each of document.querySelectorAll("#views a")) {
    each.toggleAttribute("aria-current", false);
    if (each.dataset.view === tab) each.setAttribute("aria-current", "page");
  }
  const mine = current,
    hash = location.hash;
  try {
    await mine.update(place);
    const o = await overview();
    if (mine !== current || hash !== location.hash) return;
    document.title = [place.parts.join(" "), views[place.view].title, shownText(o.name)]
      .filter(Boolean)
      .join(" · ");
  } catch (error) {
    if (mine === current && hash === location.hash) {
      dropCharts(main);
      main.replaceChildren(errorPanel(error));
      current = null; // What the view had made is gone: it is made anew.
    }
  }
  main.dataset.shown = hash;
}

function showFrame() {
  document
    .getElementById("views")
    .append(
      ...TABS.map((view) =>
        element("a", { href: `#/${view}`, "data-view": view }, views[view].title),
      ),
    );
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // The address says which view is shown.
    document.getElementById("main").focus();
  });
  const dialog = document.getElementById("keys");
  dialog.append(
    element("h2", { id: "keys-title" }, "Keys"),
    facts(KEYS.map(([key, what]) => [element("kbd", {}, key), what])),
    button("Close", () => dialog.close()),
  );
  const help = button("Keys", () => dialog.showModal(), { class: "plain", title: "Press ?" });
  const foot = document.getElementById("foot");
  foot.append(help);
  overview().then(
    (o) => {
      const many = o.datasets.length > 1;
      document
        .getElementById("which")
        .append(
          aside(many ? o.datasets.map(({ name }) => name).join(" + ") : o.name),
          o.split && !many ? element("span", { class: "soft" }, " / ", aside(o.split)) : "",
        );
      foot.prepend(
        element("span", {}, `gristmill ${shownText(o.gristmill)}`),
        embedded
          ? element(
              "span",
              {},
              `A file of ${shownText(embedded.about.made || "a dataset")}. `,
              embedded.about.left_out ? shownText(embedded.about.left_out) : "",
            )
          : "",
      );
    },
    () => {},
  ); // The view says what is wrong.
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, select, textarea, dialog, pre, .scroll");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing) return;
  const keys = { ArrowLeft: "previous", p: "previous", ArrowRight: "next", n: "next" };
  if (TABS[Number(event.key) - 1]) location.hash = `#/${TABS[Number(event.key) - 1]}`;
  else if (keys[event.key]) document.querySelector(`a[data-key="${keys[event.key]}"]`)?.click();
  else if (event.key === "?") document.getElementById("keys").showModal();
  else if (event.key === "g") {
    const field = document.querySelector("[data-key=go]");
    if (!field) return;
    event.preventDefault();
    field.focus();
    field.select();
  }
}

addEventListener("hashchange", go);
document.addEventListener("keydown", onKey);
showFrame();
go();
