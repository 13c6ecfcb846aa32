// SPDX-License-Identifier: Apache-2.0
"use strict";

const $ = (id) => document.getElementById(id);

// Makes an element: its attributes, then its texts and elements. Texts are never read as HTML.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Asks this program a question; throws what is wrong, in words, with the field if it has one.
async function ask(name, values) {
  let response;
  try {
    response = await fetch("/" + name, {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(values),
    });
  } catch {
    throw Object.assign(new Error("this page's program has ended: start it again"), {field: null});
  }
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error), {field: answer.field ?? null});
  return answer;
}

// Returns a function that runs another one after a pause, and gives its newest answer alone.
function newest(pause, run, shown) {
  let last = 0, timer;
  return () => {
    const number = ++last;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      let answer = null, error = null;
      try { answer = await run(); } catch (thrown) { error = thrown; }
      if (number === last) shown(answer, error);
    }, pause);
  };
}

function showError(error) {
  $("error").hidden = error === null;
  $("error").textContent = error === null ? "" : error.message;
}
