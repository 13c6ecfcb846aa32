// SPDX-License-Identifier: Apache-2.0

let names = [], inputs = [], example = [], columns = [], delimiter = "\t", quote = "", edits = 0;

const texts = () => inputs.map((input) => input.value.trim());

// A column of a line, in quotes where it would not end at the next delimiter.
function spelled(text) {
  const plain = !quote || !(text.includes(delimiter) || text.includes(quote));
  return plain ? text : quote + text.replaceAll(quote, quote + quote) + quote;
}

function showLine() {
  const fields = texts();
  const line = columns.map((name) => spelled(fields[names.indexOf(name)] ?? ""));
  $("line").value = fields.some((text) => text) ? line.join(delimiter) : "";
}

function markInvalid(field) {
  inputs.forEach((input, i) => {
    if (names[i] === field) {
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", "error");
    } else {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
    }
  });
}

const score = newest(0, async () => {
  const fields = texts();
  return {fields, ...await ask("score", {fields})};
}, (answer, error) => {
  showError(error);
  markInvalid(error === null ? null : error.field);
  $("score").hidden = $("effects").hidden = answer === null;
  if (answer === null) return;
  $("probability").textContent = `${(100 * answer.probability).toFixed(2)} %`;
  $("logit").textContent = answer.logit.toFixed(4);
  showEffects(answer.fields, answer.effects);
});

// Four decimals with a sign, none for a zero.
function signed(value) {
  const text = Math.abs(value).toFixed(4);
  return Number(text) === 0 ? text : (value < 0 ? "-" : "+") + text;
}

function showEffects(fields, effects) {
  const rows = effects.map((effect, i) => ({name: names[i], text: fields[i], effect}))
    .filter((row) => row.effect !== null)
    .sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
  const most = Math.max(...rows.map((row) => Math.abs(row.effect)), 1e-9);
  $("effects").hidden = !rows.length;
  $("effects").tBodies[0].replaceChildren(...rows.map((row) => {
    const filled = make("span", {class: row.effect < 0 ? "fall" : "rise"});
    const width = 50 * Math.abs(row.effect) / most;
    filled.style.width = `${width}%`;
    filled.style.left = `${row.effect < 0 ? 50 - width : 50}%`;
    // An unknown category has the id of an empty field.
    const unknown = !Number(signed(row.effect));
    const note = unknown ? [" ", make("span", {class: "muted"}, "unknown, or without effect")] : [];
    return make("tr", {}, make("td", {}, row.name), make("td", {}, row.text, ...note),
      make("td", {class: "number"}, signed(row.effect)),
      make("td", {class: "bar", "aria-hidden": "true"},
        make("div", {}, make("i", {}), filled)));
  }));
}

// Fills the fields from a line without its label, as the schema of the model splits it.
const readLine = newest(0, async () => {
  const line = $("line").value.replace(/\r?\n$/, ""), before = edits;
  try {
    const {fields} = line ? await ask("split", {line}) : {fields: names.map(() => "")};
    return {fields, before};
  } catch (error) {
    return {error, before};
  }
}, ({fields, error, before}) => {
  if (before !== edits) return;  // of the fields, meanwhile
  if (error) {
    showError(error);
    $("score").hidden = $("effects").hidden = true;
    $("line").setAttribute("aria-invalid", "true");
    return;
  }
  $("line").removeAttribute("aria-invalid");
  inputs.forEach((input, i) => { input.value = fields[i]; });
  score();
});

function edited() {
  edits++;
  $("line").removeAttribute("aria-invalid");
  showLine();
  score();
}

$("line").addEventListener("input", readLine);
$("line").addEventListener("paste", (event) => {
  const text = event.clipboardData.getData("text/plain");
  if (!text.includes(delimiter)) return;
  event.preventDefault();  // a pasted line takes the place of the one before
  $("line").value = text;
  readLine();
});
$("form").addEventListener("submit", (event) => { event.preventDefault(); edited(); });
function fill(fields) {
  inputs.forEach((input, i) => { input.value = fields[i] ?? ""; });
  edited();
}
$("clear").addEventListener("click", () => fill([]));
$("example").addEventListener("click", () => fill(example));

ask("model", {}).then((model) => {
  names = model.fields;
  columns = model.line;
  delimiter = model.delimiter;
  quote = model.quote;
  $("line-label").textContent = `Line of a click log: ${columns.length} fields, without the label`;
  example = model.example;
  $("example").hidden = !example.some((text) => text);
  inputs = names.map((name, i) => {
    const id = `column-${i}`;  // a name may be that of another element
    const input = make("input", {type: "text", id, autocomplete: "off", spellcheck: "false"});
    input.addEventListener("change", edited);
    $("columns").append(make("div", {}, make("label", {for: id}, name), input));
    return input;
  });
  $("about").textContent = `${model.model} on the server ${model.url}.`;
  edited();
}, showError);
