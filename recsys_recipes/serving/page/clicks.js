// SPDX-License-Identifier: Apache-2.0

let names = [], inputs = [], example = [], columns = [];

const texts = () => inputs.map((input) => input.value.trim());

function showLine() {
  const fields = texts();
  const line = columns.map((name) => fields[names.indexOf(name)] ?? "");
  $("line").value = fields.some((text) => text) ? line.join("\t") : "";
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

// Fills the fields from a line without its label.
function readLine() {
  const line = $("line").value.replace(/\r?\n$/, "");
  const delimiter = ["\t", ",", ";", "|"].find((each) => line.includes(each)) ?? "\t";
  const fields = line ? line.split(delimiter) : columns.map(() => "");
  if (fields.length !== columns.length) {
    const message = `A line has ${columns.length} fields, without the label; this one has ` +
      `${fields.length}.`;
    showError(new Error(message));
    $("score").hidden = $("effects").hidden = true;
    $("line").setAttribute("aria-invalid", "true");
    return;
  }
  $("line").removeAttribute("aria-invalid");
  inputs.forEach((input, i) => { input.value = fields[columns.indexOf(names[i])]; });
  score();
}

function edited() {
  $("line").removeAttribute("aria-invalid");
  showLine();
  score();
}

$("line").addEventListener("input", readLine);
$("line").addEventListener("paste", (event) => {
  const text = event.clipboardData.getData("text/plain");
  if (!text.includes("\t")) return;
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
