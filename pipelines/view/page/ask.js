// Answers to what the page asks: out of this file where it holds them, else from the
// server that the page came from.
"use strict";

// What is wrong, where, expected, got, and what to do: as in messages of the command.
class AnswerError extends Error {
  constructor(facts) {
    super(facts.what);
    this.facts = facts;
  }
}

const KEPT_ANSWERS = 64;

const embedded = readEmbedded();
const askedBefore = new Map();

function readEmbedded() {
  const holder = document.getElementById("answers");
  if (holder === null) return null;
  const { answers, about } = JSON.parse(holder.textContent);
  const byPath = new Map();
  for (const [path, answer] of Object.entries(answers)) byPath.set(plain(path), answer);
  return { byPath, about };
}

// One text for each request, however its parameters are escaped and ordered.
function plain(path) {
  const [name, query] = path.split("?");
  return JSON.stringify([name, [...new URLSearchParams(query)].sort()]);
}

// Makes "api/step?step=5"; parameters that are null or empty are left out.
function request(name, parameters = {}) {
  const split = new URLSearchParams(location.search).get("split");
  const pairs = Object.entries({ ...parameters, split })
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
  return `api/${name}` + (pairs.length ? `?${pairs.join("&")}` : "");
}

// Returns a promise of an answer; it fails with an AnswerError.
function ask(name, parameters) {
  const path = request(name, parameters);
  if (askedBefore.has(path)) return askedBefore.get(path);
  const answer = embedded ? fromFile(path) : fromServer(path);
  askedBefore.set(path, answer);
  answer.catch(() => askedBefore.delete(path));
  if (askedBefore.size > KEPT_ANSWERS) {
    askedBefore.delete(askedBefore.keys().next().value);
  }
  return answer;
}

// Numbers, in order, for which this file holds answers: of steps, or of records.
function numbersHere(name, of = "") {
  const found = [];
  for (const path of embedded.byPath.keys()) {
    const [asked, pairs] = JSON.parse(path);
    const parameters = new Map(pairs);
    if (asked === `api/${name}` && (parameters.get("of") || "") === of) {
      found.push(Number(parameters.get(name)));
    }
  }
  return [...new Set(found)].sort((a, b) => a - b);
}

async function fromFile(path) {
  const answer = embedded.byPath.get(plain(path));
  if (answer === undefined) {
    throw new AnswerError({
      what: "This is not in the file: it holds a part of the dataset",
      cure: `start \`${embedded.about.command}\`, which serves all of the dataset`,
    });
  }
  return checkedAnswer(answer);
}

async function fromServer(path) {
  let response;
  try {
    response = await fetch(path, { headers: { Accept: "application/json" } });
  } catch {
    throw new AnswerError({
      what: "The server of this page does not answer",
      where: location.origin,
      cure: "see whether gristmill view still runs, start it again, and reload",
    });
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new AnswerError({
      what: "The server of this page gave something else than JSON",
      where: `${location.origin}/${path}`,
      got: `HTTP status ${response.status}`,
      cure: "see what gristmill view says in its terminal",
    });
  }
  return checkedAnswer(answer);
}

function checkedAnswer(answer) {
  if (answer && answer.error) throw new AnswerError(answer.error);
  return answer;
}
