/* The search of the site: its dialog, which finds while one types, and its page. Nothing
   is requested but files of the site, by <script>, so that it works from file:// too. */

"use strict";

const SiteSearch = (() => {
  const ROOT = document.documentElement.dataset.content_root;
  const SNIPPET = 32;
  let loaded = null;

  function make(tag, attributes, ...children) {
    const made = document.createElement(tag);
    Object.assign(made, attributes);
    made.append(...children);
    return made;
  }

  function runScript(path) {
    return new Promise((resolve, reject) => {
      const script = make("script", { src: ROOT + path });
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${path} cannot be loaded`));
      document.head.append(script);
    });
  }

  /** The index, which is loaded when somebody begins to search. */
  function load() {
    loaded ??= (async () => {
      await runScript("_static/language_data.js"); // Sphinx's stemmer
      await runScript("_static/minisearch/minisearch.js");
      await runScript("searchindex.js");
      return new SearchIndex(SiteSearch.data);
    })();
    return loaded;
  }

  /** The pages that a question leads to, best first, each with its best parts. */
  async function ask(question) {
    return (await load()).ask(question);
  }

  /** The words of a text that say most about a question, with its terms marked. */
  function snippetOf(index, text, terms) {
    const words = [...text.matchAll(/\S+/g)].map((match) => {
      const hits = index.terms(match[0]).filter((term) => terms.has(term));
      return { text: match[0], hits };
    });
    let [from, most] = [0, -1];
    for (let i = 0; i === 0 || i + SNIPPET <= words.length; i += 1) {
      const near = words.slice(i, i + SNIPPET);
      const hits = new Set(near.flatMap((word) => word.hits)).size;
      if (hits > most) [from, most] = [i, hits];
    }
    const shown = words.slice(from, from + SNIPPET).flatMap((word) => {
      const part = word.hits.length ? make("mark", {}, word.text) : word.text;
      return [part, " "];
    });
    if (from > 0) shown.unshift("… ");
    if (from + SNIPPET < words.length) shown.push("…");
    return make("p", {}, ...shown);
  }

  const placeOf = (part) => `${part.page.link}#${part.anchor}`;

  function linkTo(part, label) {
    return make("a", { href: ROOT + placeOf(part) }, label);
  }

  function resultOf(index, { page, parts }, terms) {
    const best = parts[0].part;
    const name = best.title === page.title ? [] : [` › ${best.title}`];
    const item = make("li", {}, linkTo(best, [page.title, ...name].join("")));
    if (best.text) item.append(snippetOf(index, best.text, terms));
    const seen = new Set([best.title, page.title]);
    const others = make("p", { className: "site-search-others" });
    for (const { part, score } of parts.slice(1)) {
      if (seen.size > 4 || score < parts[0].score / 2) break;
      if (!seen.has(part.title)) others.append(linkTo(part, part.title), " ");
      seen.add(part.title);
    }
    if (others.childNodes.length) item.append(others);
    return item;
  }

  /** Shows what is found, unless another question was asked meanwhile. */
  async function show(input, box, most) {
    const question = input.value.trim();
    if (!question) return box.replaceChildren();
    let found;
    let index;
    try {
      index = await load();
      found = await ask(question);
    } catch (error) {
      return box.replaceChildren(make("p", { role: "alert" }, error.message));
    }
    if (question !== input.value.trim()) return undefined;
    const { pages, marked } = found;
    const items = pages.slice(0, most).map((each) => resultOf(index, each, marked));
    const list = make("ol", { className: "site-search-found" }, ...items);
    const none = "Nothing is found: try fewer or other words.";
    const status = make("p", { role: "status" }, pages.length ? "" : none);
    return box.replaceChildren(status, list);
  }

  /** Arrow keys go from the question to the results, and on. */
  function goOn(event, input, box) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const stops = [input, ...box.querySelectorAll("li > a")];
    const next = stops[stops.indexOf(document.activeElement) + step];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  }

  function start() {
    for (const form of document.querySelectorAll("form.bd-search")) {
      const input = form.querySelector("input[name=q]");
      const inPage = document.getElementById("search-results");
      const isDialog = form.closest("dialog") !== null;
      const box =
        !isDialog && inPage ? inPage : form.parentNode.appendChild(make("div"));
      box.classList.add("site-search");
      const most = isDialog ? 8 : 30;
      let timer;
      input.addEventListener("focus", () => load().catch(() => {}));
      input.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(show, 100, input, box, most);
      });
      form.parentNode.addEventListener("keydown", (e) => goOn(e, input, box));
      // A result on the same page loads no other.
      if (isDialog) box.addEventListener("click", (event) => {
        if (event.target.closest("a")) form.closest("dialog").close();
      });
      if (!isDialog) {
        input.value = new URLSearchParams(location.search).get("q") ?? "";
        show(input, box, most);
      }
    }
  }

  document.addEventListener("DOMContentLoaded", start);
  return { ask, placeOf, data: null };
})();
