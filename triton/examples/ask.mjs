// SPDX-License-Identifier: Apache-2.0
// Asks a model over HTTP from JavaScript; Node 18 or later, no package. Prints the reply as JSON.
//   node triton/examples/ask.mjs 127.0.0.1:8000 dlrm features 0.5,1.25,... 3,17,...
//   node triton/examples/ask.mjs 127.0.0.1:8000 dlrm line "$(head -1 day_23 | cut -f2-)"
//   node triton/examples/ask.mjs 127.0.0.1:8000 bert4rec history 50,181,172
//   node triton/examples/ask.mjs 127.0.0.1:8000 bert4rec ids B00001,B00007
// A row as the dataset holds it, a line of the log (--raw), item numbers, or raw ids (--raw_ids).
// A browser needs your own server in between: Triton has no users, and sends no CORS headers.

// An input of one row; `data` lists the values of all rows, one row after the other.
const tensor = (name, datatype, data) => ({ name, datatype, shape: [1, data.length], data });
const numbers = (text) => text.split(",").map(Number);

const inputsOf = {
  features: (numerical, categorical) => [
    tensor("numerical", "FP32", numbers(numerical)),
    tensor("categorical", "INT64", numbers(categorical)),
  ],
  line: (line) => [tensor("line", "BYTES", [line])],
  history: (items) => [tensor("history", "INT64", numbers(items))],
  ids: (ids) => [tensor("history", "BYTES", ids.split(","))],
};

// Returns name -> values of each output, [rows x columns] in one list.
async function infer(address, model, inputs) {
  const response = await fetch(`http://${address}/v2/models/${model}/infer`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ inputs }),
    signal: AbortSignal.timeout(10_000),
  });
  const reply = await response.json();
  if (!response.ok) throw new Error(reply.error); // names row, feature, value and range
  return Object.fromEntries(reply.outputs.map(({ name, data }) => [name, data]));
}

const [address, model, kind, ...values] = process.argv.slice(2);
if (!Object.hasOwn(inputsOf, kind ?? "") || values.length === 0) {
  console.error("usage: ask.mjs ADDRESS MODEL features|line|history|ids VALUES...");
  process.exitCode = 2;
} else {
  try {
    console.log(JSON.stringify(await infer(address, model, inputsOf[kind](...values))));
  } catch (error) {
    console.error(`ask.mjs: ${error.cause?.message ?? error.message}`);
    process.exitCode = 1;
  }
}
