// A proxy between the browser and the server, as operators have them: it puts the page under a path, and it can be
// cut, pointed at another server, or answer a path by itself.
import { createServer, request } from "node:http";

export async function startProxy(upstream, { prefix = "/", answers = () => false } = {}) {
  let to = new URL(upstream);
  let isCut = false;
  const open = new Set();
  const server = createServer((asked, answer) => {
    if (isCut || !asked.url.startsWith(prefix)) {
      if (isCut) asked.socket.destroy();
      else answer.writeHead(404).end("elsewhere");
      return;
    }
    const path = `/${asked.url.slice(prefix.length)}`;
    if (answers(asked, answer, path)) return;
    const passed = request({ host: to.hostname, port: to.port, path, method: asked.method, headers: { ...asked.headers, host: to.host } }, (got) => {
      answer.writeHead(got.statusCode, got.headers);
      got.pipe(answer);
    });
    passed.on("error", () => answer.destroy());
    answer.on("close", () => passed.destroy());
    asked.pipe(passed);
  });
  server.on("connection", (socket) => {
    open.add(socket);
    socket.on("close", () => open.delete(socket));
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return {
    address: `http://127.0.0.1:${server.address().port}${prefix}`,
    /** From now on nobody is answered, and who was connected is cut off. */
    cut() {
      isCut = true;
      for (const socket of open) socket.destroy();
    },
    mend() { isCut = false; },
    pointAt(address) { to = new URL(address); },
    close() {
      for (const socket of open) socket.destroy();
      server.close();
    },
  };
}
