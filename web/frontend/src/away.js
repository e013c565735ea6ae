// The service worker: keeps the page's own files, so that a page opened while the server is away is the console's own.
// It asks the server first, answers in its place only when nobody listens, and stores nothing of /api.
const FILES = [/* the build writes the names of the files here */];
const CACHE = `apc-page ${FILES.join(" ")}`;

self.addEventListener("install", (event) => {
  const fresh = FILES.map((path) => new Request(path, { cache: "reload" }));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(fresh)).then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  const old = async () => {
    for (const name of await caches.keys()) if (name.startsWith("apc-page ") && name !== CACHE) await caches.delete(name);
    await self.clients.claim();
  };
  event.waitUntil(old());
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin || pathname === "/api" || pathname.startsWith("/api/")) return;
  const path = request.mode === "navigate" ? "/" : pathname;
  if (!FILES.includes(path)) return;
  const kept = async (error) => {
    const found = await (await caches.open(CACHE)).match(path);
    if (found) return found;
    throw error;
  };
  event.respondWith(fetch(request).catch(kept));
});
