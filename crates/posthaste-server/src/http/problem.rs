//! What is answered when something is not: `application/problem+json` with a code, what it means for the
//! events, and what to do.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

/// What nearly every refusal means for the events.
pub(crate) const UNTOUCHED: &str = "Nothing was changed.";

/// Why something is not answered.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ApiProblem {
    /// Where it is explained.
    #[serde(rename = "type")]
    pub(crate) kind: Box<str>,
    /// The answer's status.
    #[schemars(with = "u16")]
    #[serde(serialize_with = "number")]
    pub(crate) status: StatusCode,
    /// What it is, for programs. Stable.
    pub(crate) code: Box<str>,
    /// What happened.
    pub(crate) detail: String,
    /// What it means for the events.
    pub(crate) events: Box<str>,
    /// What to do.
    #[serde(rename = "do")]
    pub(crate) advice: Box<str>,
}

fn number<S: serde::Serializer>(status: &StatusCode, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u16(status.as_u16())
}

impl ApiProblem {
    /// A problem that changes nothing.
    pub(crate) fn new(status: StatusCode, code: &str, detail: impl Into<String>, advice: &str) -> Self {
        Self {
            kind: format!("docs/errors.md#{code}").into(),
            status,
            code: code.into(),
            detail: detail.into(),
            events: UNTOUCHED.into(),
            advice: advice.into(),
        }
    }

    /// A request that is wrong itself.
    pub(crate) fn bad(code: &str, detail: impl Into<String>, advice: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail, advice)
    }

    /// The same with another meaning for the events.
    pub(crate) fn meaning(self, events: impl Into<Box<str>>) -> Self {
        Self { events: events.into(), ..self }
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(serde_json::to_string(&self).unwrap_or_default()));
        *response.status_mut() = self.status;
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Texts of the sources below a folder that look like a code: `start`, and a word.
    fn collect(folder: &Path, start: &str, codes: &mut BTreeSet<String>) {
        if folder.is_dir() {
            for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
                collect(&entry.path(), start, codes);
            }
            return;
        }
        let text = std::fs::read_to_string(folder).unwrap_or_default();
        let quoted = text.split('"').filter(|text| text.strip_prefix(start).is_some_and(is_word));
        codes.extend(quoted.map(str::to_owned));
    }

    fn is_word(text: &str) -> bool {
        !text.is_empty() && text != "md" && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    }

    /// The `type` of a problem is a place of the page.
    #[test]
    fn every_code_of_the_api_is_documented_and_has_its_anchor() {
        compare("src", "api.", "\n## The API\n");
        compare("src/gateway/answer.rs", "gateway.", "\n## The gateway\n");
    }

    fn compare(folder: &str, start: &str, heading: &str) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(root.join("../../docs/errors.md")).expect("the page");
        let (_, section) = page.split_once(heading).expect("the section");
        let section = section.split("\n## ").next().expect("its text");
        let mut given = BTreeSet::new();
        collect(&root.join(folder), start, &mut given);
        assert!(given.len() > 15, "{given:?}");
        let anchors = section.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let documented: BTreeSet<String> = anchors.map(str::to_owned).collect();
        assert_eq!(given, documented);
        for code in given {
            assert!(section.contains(&format!("`{code}`<a id=\"{code}\"></a>")), "{code}");
        }
    }
}
