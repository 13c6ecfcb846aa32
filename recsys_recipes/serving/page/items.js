// SPDX-License-Identifier: Apache-2.0

const history_ = [];
let options = [], active = -1;

const nameOf = (item) => item.title || item.id;

// Title and id, or the id alone.
function named(item) {
  const name = make("span", {}, nameOf(item));
  if (item.title) name.append(" ", make("span", {class: "muted"}, item.id));
  return name;
}

const recommend = newest(0, async () => {
  if (!history_.length) return {items: []};
  const ids = history_.map((item) => item.id);
  return ask("recommend", {history: ids, exclude_seen: $("exclude").checked});
}, (answer, error) => {
  showError(error);
  const items = answer === null ? [] : answer.items;
  $("next").hidden = !items.length;
  $("next").tBodies[0].replaceChildren(...items.map((item, i) => {
    const add = make("button", {type: "button", "aria-label": `Add ${nameOf(item)}`}, "Add");
    add.addEventListener("click", () => append(item));
    return make("tr", {}, make("td", {class: "number"}, String(i + 1)), make("td", {}, named(item)),
      make("td", {class: "number"}, item.score.toFixed(4)), make("td", {class: "number"}, add));
  }));
  if (error !== null) $("status").textContent = "";
  else if (!history_.length) $("status").textContent = "Add an item to see recommendations.";
  else if (!items.length) $("status").textContent = "No item is left to recommend.";
  else $("status").textContent = `The best ${items.length} after ${nameOf(history_.at(-1))}.`;
});

function showHistory() {
  $("history").replaceChildren(...history_.map((item, i) => {
    const remove = make("button", {type: "button", "aria-label": `Remove ${nameOf(item)}`}, "Remove");
    remove.addEventListener("click", () => {
      history_.splice(i, 1);
      showHistory();
      ($("history").querySelectorAll("button")[i] ?? $("search")).focus();
    });
    return make("li", {}, make("div", {}, named(item), remove));
  }));
  $("no-history").hidden = history_.length > 0;
  $("clear").hidden = !history_.length;
  recommend();
}

function append(item) {
  history_.push(item);
  showHistory();
}

function showOptions(found, more) {
  options = found;
  active = found.length ? 0 : -1;
  $("options").replaceChildren(...found.map((item, i) => {
    const option = make("li", {role: "option", id: `option-${i}`}, named(item));
    option.addEventListener("mousedown", (event) => { event.preventDefault(); choose(i); });
    return option;
  }));
  if (more) {
    const text = "More match: write more of the title.";
    $("options").append(make("li", {class: "muted", role: "presentation"}, text));
  }
  $("options").hidden = !found.length;
  $("search").setAttribute("aria-expanded", String(found.length > 0));
  mark();
}

function mark() {
  $("options").querySelectorAll("[role=option]").forEach((option, i) => {
    option.setAttribute("aria-selected", String(i === active));
    if (i === active) option.scrollIntoView({block: "nearest"});
  });
  if (active < 0) $("search").removeAttribute("aria-activedescendant");
  else $("search").setAttribute("aria-activedescendant", `option-${active}`);
}

function choose(i) {
  append(options[i]);
  $("search").value = "";
  showOptions([], false);
}

const search = newest(80, () => ask("search", {text: $("search").value}), (answer, error) => {
  const text = $("search").value.trim();
  if (error !== null) showError(error);
  showOptions(answer === null ? [] : answer.items, answer !== null && answer.has_more);
  $("search-help").textContent = text && !options.length && error === null
    ? `No item matches ${text}.` : "Arrow keys choose, Enter adds.";
});

$("search").addEventListener("input", search);
$("search").addEventListener("blur", () => showOptions([], false));
$("search").addEventListener("keydown", (event) => {
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (step && options.length) active = (active + step + options.length) % options.length;
  else if (event.key === "Enter" && active >= 0) choose(active);
  else if (event.key === "Escape") showOptions([], false);
  else return;
  event.preventDefault();
  mark();
});
$("exclude").addEventListener("change", recommend);
$("clear").addEventListener("click", () => {
  history_.length = 0;
  showHistory();
  $("search").focus();
});

ask("model", {}).then((model) => {
  const by = model.has_titles ? "title or id" : model.by_raw_id ? "id" : "number";
  $("search-label").textContent = `Add an item by ${by}`;
  const items = model.num_items === null ? "" : ` among ${model.num_items.toLocaleString("en")} items`;
  $("about").textContent =
    `${model.model} on the server ${model.url} names the ${model.top_k} best next items${items}.`;
}, showError);
