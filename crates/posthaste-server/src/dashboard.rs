//! The dashboard: a few files in the binary, made from `ui/` by Vite and committed as `ui/dist/`.
//!
//! It needs no token: it knows nothing, and asks the API with the session of whoever opened it. `cargo build`
//! needs no Node, so what is built is committed; a test compares the hash of the sources that it was made
//! from, and `./test` builds it again and compares byte by byte.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// One file: where it is, what it is, and its bytes.
type PageFile = (&'static str, &'static str, &'static [u8]);

const FILES: [PageFile; 4] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../ui/dist/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_bytes!("../ui/dist/app.js")),
    ("/app.css", "text/css; charset=utf-8", include_bytes!("../ui/dist/app.css")),
    ("/favicon.svg", "image/svg+xml", include_bytes!("../ui/dist/favicon.svg")),
];

/// All of them. Who may ask is for the listener to say.
pub(crate) fn dashboard() -> Router {
    let mut router = Router::new();
    for (path, kind, bytes) in FILES {
        let tag = tag(bytes);
        router = router.route(path, get(async move |headers: HeaderMap| file(&headers, kind, &tag, bytes)));
    }
    router
}

fn file(headers: &HeaderMap, kind: &'static str, tag: &HeaderValue, bytes: &'static [u8]) -> Response {
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known == tag);
    let mut response = Response::new(if is_known { Body::empty() } else { Body::from(bytes) });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::ETAG, tag.clone());
    // Asked for again each time, and sent only if it is another one: an upgrade is seen by the next reload.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn tag(bytes: &[u8]) -> HeaderValue {
    let mut tag = "\"".to_owned();
    for byte in &Sha256::digest(bytes)[..16] {
        let _ = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    // Hex digits between quotes are a value.
    HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    const UI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ui");

    fn sources(below: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(below).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
            match path.is_dir() {
                true if ["dist", "node_modules", "screens"].contains(&name.as_str()) => {}
                true => sources(&path, found),
                false => found.push(path),
            }
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    #[test]
    fn what_is_embedded_was_built_from_these_sources() {
        let root = Path::new(UI);
        let mut found = Vec::new();
        sources(root, &mut found);
        let name =
            |path: &PathBuf| path.strip_prefix(root).expect("below").to_str().expect("text").to_owned();
        let mut names: Vec<String> = found.iter().map(name).collect();
        names.sort();
        let mut whole = Sha256::new();
        for name in names {
            let bytes = std::fs::read(root.join(&name)).expect("a file");
            whole.update(format!("{name}\0{}\n", hex(&Sha256::digest(bytes))));
        }
        let built = std::fs::read_to_string(root.join("dist/SOURCE")).expect("dist/SOURCE");
        let advice = "ui/dist is older than ui/src: run `npm ci --ignore-scripts && npm run build` in ui/";
        assert_eq!(built.trim(), hex(&whole.finalize()), "{advice}");
    }

    #[test]
    fn the_page_asks_for_nothing_that_is_not_embedded_and_has_no_script_of_its_own() {
        let index = std::str::from_utf8(FILES[0].2).expect("text");
        for part in ["src=\"", "href=\""] {
            for rest in index.split(part).skip(1) {
                let path = rest.split('"').next().unwrap_or_default();
                let known = FILES.iter().any(|(known, ..)| path.strip_prefix('.') == Some(known));
                assert!(known, "{path} is no file of the page, or not relative");
            }
        }
        let has_script = index.split("<script").skip(1).any(|rest| !rest.contains("src=\""));
        assert!(!has_script && !index.contains("style="), "the content security policy forbids it");
        let dist = std::fs::read_dir(Path::new(UI).join("dist")).expect("dist").count();
        assert_eq!(dist, FILES.len() + 1, "each file of dist but SOURCE is embedded");
    }

    #[test]
    fn a_file_that_is_known_is_not_sent_again() {
        let (_, kind, bytes) = FILES[1];
        let tag = tag(bytes);
        let mut headers = HeaderMap::new();
        assert_eq!(file(&headers, kind, &tag, bytes).status(), StatusCode::OK);
        headers.insert(header::IF_NONE_MATCH, tag.clone());
        assert_eq!(file(&headers, kind, &tag, bytes).status(), StatusCode::NOT_MODIFIED);
    }
}
