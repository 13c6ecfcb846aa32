// The search reads a leading - as "without": a flag is looked for by its name, --batch_size=64 too.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const flag = /(^|\s)--(\w+)(=\S*)?/g;
  const asked = typeof message?.data === "string";
  post.call(this, asked ? { ...message, data: message.data.replace(flag, "$1$2") } : message, ...rest);
};
