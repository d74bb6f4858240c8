/* The search of the site, in the place of Sphinx's, which finds only pages that have
   every word of a question: no pasted message with its names and numbers.

   Sections are ranked by their words with BM25 [1], so that words which a section does
   not have cost nothing, and rare words count most. searchindex.js, which
   docs/site_search.py writes, has the text of all sections.

   [1] Robertson and Zaragoza, The Probabilistic Relevance Framework (2009), 3.4. */

"use strict";

const SearchIndex = (() => {
  const K1 = 1.2;
  const B = 0.6;
  // What words in titles and in the descriptions of pages count beside those in texts.
  const SECTION = 0.8;
  const PAGE = 1.2;
  const DESCRIPTION = 1;
  // A row of a table counts less than a section that says the same.
  const ROW = 0.85;
  // What pairs of words count that follow each other as in the question.
  const PAIR = 0.5;
  const PAIRS_OF = 60;
  // What the other sections of a page add to its best, and how many of them.
  const OTHERS = 0.12;
  const OTHERS_OF = 10;
  // A question of more words is taken for a message, in which many words mean nothing.
  const SHORT = 3;
  const NUMBER = 0.3;
  // Words that are in fewer than a tenth of the sections, about.
  const TELLING = 2.3;
  const WORD = /[\p{L}\p{N}]+(?:[_-]+[\p{L}\p{N}]+)*[_-]?/gu;
  // Paths, addresses of buckets, hexadecimal numbers.
  const OF_A_USER = /[/\\]|^\W*0x[\da-f]+\W*$/i;

  const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

  /** Whether a letter is wrong, missing, too many, or two are swapped. */
  function isSlip(a, b) {
    let start = 0;
    while (start < a.length && a[start] === b[start]) start += 1;
    let end = 0;
    const most = Math.min(a.length, b.length) - start;
    while (end < most && a.at(-1 - end) === b.at(-1 - end)) end += 1;
    const one = a.slice(start, a.length - end);
    const other = b.slice(start, b.length - end);
    if (one.length < 2 && other.length < 2) return true;
    return one.length === 2 && one === other[1] + other[0];
  }

  class Index {
    constructor({ pages, parts }) {
      this.stemmer = new Stemmer();
      this.stems = new Map();
      this.found = new Map(); // term -> Map of part -> how often
      this.pages = pages.map(([link, title, description, ...weights]) => ({
        link,
        title,
        weights, // for a short question, for a message
        inTitle: this.terms(title),
        inDescription: new Set(this.terms(description)),
      }));
      this.parts = parts.map(([page, anchor, title, text], number) => {
        const terms = this.terms(text);
        const inTitle = this.terms(title);
        for (const term of [...terms, ...inTitle]) {
          if (!this.found.has(term)) this.found.set(term, new Map());
          const counts = this.found.get(term);
          counts.set(number, (counts.get(number) ?? 0) + 1);
        }
        const whole = this.pages[page];
        return { page: whole, anchor, title, text, terms, inTitle };
      });
      this.length = sum(this.parts.map((each) => each.terms.length));
      this.length /= this.parts.length;
      this.words = [...this.stems.keys()];
    }

    stem(word) {
      let stem = this.stems.get(word);
      if (stem === undefined) {
        stem = /[\p{N}_]/u.test(word) ? word : this.stemmer.stemWord(word);
        this.stems.set(word, stem);
      }
      return stem;
    }

    /** The terms of a word: `--group-size` is group_size, group and size. */
    termsOf(word) {
      const parts = word.split(/[_-]+/).filter((each) => each);
      const terms = parts.map((each) => this.stem(each));
      if (parts.length > 1) terms.unshift(parts.join("_"));
      else if (/[_-]$/.test(word)) return [`${parts[0]}_`];
      return terms;
    }

    terms(text) {
      const words = text.toLowerCase().match(WORD) ?? [];
      return words.flatMap((word) => this.termsOf(word));
    }

    /** The terms of a question, without what is a user's own if enough remains. */
    asked(question) {
      const chunks = question.split(/\s+/);
      const kept = chunks.filter((each) => !OF_A_USER.test(each));
      const terms = this.terms(kept.join(" "));
      if (terms.length > SHORT) return terms;
      const words = question.toLowerCase().match(WORD) ?? [];
      return words.flatMap((word) => this.termsOf(this.known(word)));
    }

    /** A word, or one that the pages have and that is like it. */
    known(word) {
      if (!/^\p{L}{5,}$/u.test(word)) return word;
      if (this.words.some((each) => each.startsWith(word))) return word;
      return this.words.find((each) => isSlip(word, each)) ?? word;
    }

    /** The terms that are meant by one: itself, or while it is typed, what begins with it. */
    meantBy(term, isShort) {
      if (this.found.has(term) && !term.endsWith("_")) return new Set([term]);
      if (!isShort) return new Set();
      const all = [...this.found.keys()];
      return new Set(all.filter((each) => each.startsWith(term)));
    }

    /** How often each part has one of some terms. */
    having(meant) {
      const counts = new Map();
      for (const term of meant)
        for (const [part, count] of this.found.get(term))
          counts.set(part, (counts.get(part) ?? 0) + count);
      return counts;
    }

    /** Pages with their best parts, best first, and the terms that were found. */
    ask(question) {
      const terms = this.asked(question);
      const isShort = terms.length <= SHORT;
      const values = new Map();
      const meanings = [];
      const scores = new Map();
      for (const term of new Set(terms)) {
        const meant = this.meantBy(term, isShort);
        const counts = this.having(meant);
        const rest = this.parts.length - counts.size;
        let value = Math.log(1 + (rest + 0.5) / (counts.size + 0.5));
        if (!isShort && /^\p{N}+$/u.test(term)) value *= NUMBER;
        values.set(term, meant.size ? value : 0);
        meanings.push({ meant, value });
        for (const [number, count] of counts) {
          const part = this.parts[number];
          const length = Math.max(part.terms.length, this.length);
          const size = 1 - B + (B * length) / this.length;
          let score = (value * count * (K1 + 1)) / (count + K1 * size);
          score += SECTION * this.inTitle(part.inTitle, meant, value);
          scores.set(part, (scores.get(part) ?? 0) + score);
        }
      }
      this.addPairs(scores, terms, values);
      for (const [part, score] of scores)
        if (part.anchor.startsWith("row-")) scores.set(part, ROW * score);
      // Marked are those that say something, if there are any.
      const telling = terms.filter((term) => values.get(term) > TELLING);
      const marked = new Set(telling.length ? telling : terms);
      const pages = this.pagesOf(scores, meanings, isShort ? 0 : 1);
      return { pages, marked };
    }

    /** What a term in a title is worth: more if there is little else in it. */
    inTitle(title, meant, value) {
      const isThere = title.some((term) => meant.has(term));
      return isThere ? value * (0.5 + 1 / title.length) : 0;
    }

    /** Raises parts in which words follow each other as in the question. */
    addPairs(scores, terms, values) {
      const pairs = new Map();
      for (let i = 1; i < terms.length; i += 1) {
        const value = Math.min(values.get(terms[i - 1]), values.get(terms[i]));
        pairs.set(`${terms[i - 1]} ${terms[i]}`, value);
      }
      if (!pairs.size) return;
      const best = [...scores].sort((a, b) => b[1] - a[1]).slice(0, PAIRS_OF);
      for (const [part, score] of best) {
        const there = new Set();
        for (const text of [part.inTitle, part.terms])
          for (let i = 1; i < text.length; i += 1)
            there.add(`${text[i - 1]} ${text[i]}`);
        const found = [...pairs].filter(([pair]) => there.has(pair));
        scores.set(part, score + PAIR * sum(found.map(([, value]) => value)));
      }
    }

    pagesOf(scores, meanings, kind) {
      const found = new Map();
      for (const [part, score] of [...scores].sort((a, b) => b[1] - a[1])) {
        if (!found.has(part.page)) found.set(part.page, []);
        found.get(part.page).push({ part, score });
      }
      const pages = [...found].map(([page, ranked]) => {
        let score = ranked[0].score;
        score += OTHERS * sum(ranked.slice(1, 1 + OTHERS_OF).map((a) => a.score));
        for (const { meant, value } of meanings) {
          score += PAGE * this.inTitle(page.inTitle, meant, value);
          const isTold = [...meant].some((term) => page.inDescription.has(term));
          if (isTold) score += DESCRIPTION * value;
        }
        return { page, score: score * page.weights[kind], parts: ranked };
      });
      return pages.sort((a, b) => b.score - a.score);
    }
  }

  return Index;
})();
