/* The search of the site, in the place of Sphinx's, which finds only pages that have
   every word of a question: no pasted message with its names and numbers.

   MiniSearch ranks sections by their words, so that words which a section does not have
   cost nothing, and rare words count most. searchindex.js, which docs/site_search.py
   writes, has the text of all sections. */

"use strict";

const SearchIndex = (() => {
  // What a word counts in the text and title of a section, and in the title and the
  // description of its page.
  const BOOST = { text: 1, title: 1, page: 1.2, description: 0.6 };
  // A row of a table counts less than a section that says the same.
  const ROW = 0.85;
  // What it adds if words follow each other as in the question, for the best sections.
  const PAIRS = 0.5;
  const PAIRS_OF = 60;
  // What the other sections of a page add to its best, and how many of them.
  const OTHERS = 0.12;
  const OTHERS_OF = 10;
  // A question of more words is taken for a message, in which many words mean nothing.
  const SHORT = 3;
  const NUMBER = 0.3;
  // A word in more of all sections than this says nothing that is worth a mark.
  const COMMON = 0.1;
  const WORD = /[\p{L}\p{N}]+(?:[_-]+[\p{L}\p{N}]+)*[_-]?/gu;
  // Paths, addresses of buckets, hexadecimal numbers.
  const OF_A_USER = /[/\\]|^\W*0x[\da-f]+\W*$/i;

  const pairsOf = (terms) => terms.slice(1).map((term, i) => `${terms[i]} ${term}`);

  /** The words of a text: `--group-size` is group_size, group and size. */
  function wordsOf(text) {
    const found = text.toLowerCase().match(WORD) ?? [];
    return found.flatMap((word) => {
      const parts = word.split(/[_-]+/).filter((each) => each);
      if (parts.length > 1) return [parts.join("_"), ...parts];
      return /[_-]$/.test(word) ? [`${parts[0]}_`] : parts;
    });
  }

  class Index {
    constructor({ pages, parts }) {
      this.stemmer = new Stemmer();
      this.stems = new Map();
      this.known = new Set();
      pages = pages.map(([link, title, description, ...weights]) => {
        return { link, title, description, weights }; // for a question, for a message
      });
      this.parts = parts.map(([page, anchor, title, text]) => {
        return { page: pages[page], anchor, title, text };
      });
      this.library = new MiniSearch({
        fields: Object.keys(BOOST),
        tokenize: wordsOf,
        processTerm: (word) => {
          // Whole words too, which a word with a slip is like.
          const terms = [...new Set([this.stem(word), word])];
          for (const term of terms) this.known.add(term);
          return terms;
        },
      });
      this.library.addAll(
        this.parts.map(({ page: { title: page, description }, title, text }, id) => {
          return { id, page, description, title, text };
        }),
      );
    }

    stem(word) {
      if (/[\p{N}_]/u.test(word)) return word;
      if (!this.stems.has(word)) this.stems.set(word, this.stemmer.stemWord(word));
      return this.stems.get(word);
    }

    terms(text) {
      return wordsOf(text).map((word) => this.stem(word));
    }

    /** Pages with their best parts, best first, and the terms to mark. */
    ask(question) {
      const kept = question.split(/\s+/).filter((each) => !OF_A_USER.test(each));
      const few = wordsOf(kept.join(" ")).length <= SHORT;
      const words = wordsOf(few ? question : kept.join(" "));
      const distinct = [...new Set(words)];
      const isShort = distinct.length <= SHORT;
      const results = this.library.search(question, {
        tokenize: () => distinct,
        processTerm: (word) => this.stem(word),
        boost: BOOST,
        boostTerm: (term) => (!isShort && /^\p{N}+$/u.test(term) ? NUMBER : 1),
        boostDocument: (id) => {
          const { anchor, page } = this.parts[id];
          return page.weights[isShort ? 0 : 1] * (anchor.startsWith("row-") ? ROW : 1);
        },
        bm25: { k: 1.2, b: 0.6, d: 0 },
        // While a word is typed, what begins with it; and what a slip is like.
        prefix: (term) => isShort && (term.endsWith("_") || !this.known.has(term)),
        fuzzy: (term) => isShort && !this.known.has(term) && 0.2,
        weights: { prefix: 0.9, fuzzy: 0.45 },
      });
      const scores = new Map(results.map(({ id, score }) => [this.parts[id], score]));
      this.addPairs(scores, pairsOf(words.map((word) => this.stem(word))));
      return { pages: this.pagesOf(scores), marked: this.marked(results) };
    }

    /** Raises parts in which words follow each other as in the question. */
    addPairs(scores, pairs) {
      if (!pairs.length) return;
      for (const [part, score] of [...scores].slice(0, PAIRS_OF)) {
        const texts = [part.title, part.text].map((text) => this.terms(text));
        const there = new Set(texts.flatMap(pairsOf));
        const share = pairs.filter((pair) => there.has(pair)).length / pairs.length;
        scores.set(part, score * (1 + PAIRS * share));
      }
    }

    pagesOf(scores) {
      const found = new Map();
      for (const [part, score] of [...scores].sort((a, b) => b[1] - a[1])) {
        if (!found.has(part.page)) found.set(part.page, []);
        found.get(part.page).push({ part, score });
      }
      const pages = [...found].map(([page, parts]) => {
        const others = parts.slice(1, 1 + OTHERS_OF);
        const more = others.reduce((total, { score }) => total + score, 0);
        return { page, score: parts[0].score + OTHERS * more, parts };
      });
      return pages.sort((a, b) => b.score - a.score);
    }

    /** The terms that were found, without common ones if others remain. */
    marked(results) {
      const counts = new Map();
      for (const term of results.flatMap(({ terms }) => terms))
        counts.set(term, (counts.get(term) ?? 0) + 1);
      const telling = [...counts].filter(([, n]) => n < COMMON * this.parts.length);
      const shown = telling.length ? telling : [...counts];
      return new Set(shown.flatMap(([term]) => [term, this.stem(term)]));
    }
  }

  return Index;
})();
