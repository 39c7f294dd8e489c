// Texts that have made pages, shells and templates do something.

export const HOSTILE: readonly string[] = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "\" onmouseover=\"alert(1)\" x=\"",
  "javascript:alert(1)//\u0000",
  "{{constructor.constructor('alert(1)')()}}${7*7}",
  "$(id)`id`;id|id&&id > /tmp/x",
  "'; drop table posthaste.outbox; --",
  "../../../../etc/passwd",
  "%2e%2e%2f%00%",
  "a/b?c=d&e=f#g",
  "\u202egnp.exe\u2066\u2069\u200f\u200e\u061c",
  "\ufeff\u200bzero\u00adwidth",
  "\u001b[2J\u001b]8;;http://evil\u001b\\link",
  "a\r\nset-cookie: x=y",
  "it's \\ a $HOME",
  "-rf",
  "~root",
  "#",
  "ünïcode 漢字 🎉",
];
