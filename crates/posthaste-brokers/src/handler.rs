//! A consumer's handler in another process, as configuration describes it: its URL, or a table of the keys
//! that an HTTP sink has.

use crate::BuildError;
use posthaste::inbox::remote::RemoteHandler;
use posthaste::sink::Finding;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;

/// `http` of a handler: `"http://127.0.0.1:8080/events"`, or `{ url = "…", secrets_file = "…" }`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct HandlerConfig(Map<String, Value>);

impl<'de> Deserialize<'de> for HandlerConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Value::deserialize(deserializer)? {
            Value::String(url) => Ok(Self(Map::from_iter([("url".to_owned(), url.into())]))),
            Value::Object(table) => {
                let config = Self(table);
                config.read().map_err(D::Error::custom)?;
                Ok(config)
            }
            _ => Err(D::Error::custom("must be a URL, or a table with `url` and the keys of an HTTP sink")),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for HandlerConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HandlerConfig".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "oneOf": [{ "type": "string" }, { "type": "object", "required": ["url"] }]
        })
    }
}

#[cfg(feature = "http")]
impl HandlerConfig {
    /// The keys of a sink, with defaults of a handler: the address is the operator's own.
    fn read(&self) -> Result<crate::http::HttpConfig, String> {
        let mut table = self.0.clone();
        if table.contains_key(crate::DELIVERY_TIMEOUT) {
            return Err(format!(
                "{}: a handler's time is the consumer's `handler_timeout_ms`",
                crate::DELIVERY_TIMEOUT
            ));
        }
        let calls_max = table.get("max_in_flight").cloned().unwrap_or(crate::http::handler::CALLS_MAX.into());
        table.entry("max_in_flight").or_insert(calls_max);
        table.entry("allow_private").or_insert(true.into());
        if !table.contains_key("url") {
            return Err("`url` is missing: where messages are posted to".to_owned());
        }
        <crate::http::HttpConfig as crate::options::HasOptions>::read(table)
            .map_err(|error| error.to_string())
    }

    fn handler(&self, name: &str) -> Result<crate::http::handler::HttpHandler, BuildError> {
        let config = self.read().map_err(|why| BuildError::option("http", why))?;
        crate::http::handler::HttpHandler::start(&config, name)
    }

    /// Checks the options alone, without the files that they name.
    pub fn check(&self) -> Result<(), BuildError> {
        self.read().map_err(|why| BuildError::option("http", why))?.check_words()
    }

    /// Checks the options, and the files that they name.
    pub fn check_files(&self) -> Result<(), BuildError> {
        self.read().map_err(|why| BuildError::option("http", why))?.check()
    }

    /// Makes the handler. `name` is the consumer's, for logs.
    pub fn build(&self, name: &str) -> Result<Arc<dyn RemoteHandler>, BuildError> {
        Ok(Arc::new(self.handler(name)?))
    }

    /// What `posthaste doctor` says about the receiver. Nothing is sent.
    pub async fn examine(&self, name: &str) -> Option<Finding> {
        match self.handler(name) {
            Ok(handler) => Some(handler.examine().await),
            Err(error) => Some(Finding {
                check: "handlers".to_owned(),
                level: posthaste::sink::Level::Fail,
                text: error.to_string(),
            }),
        }
    }
}

#[cfg(not(feature = "http"))]
impl HandlerConfig {
    fn read(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks the options alone, without the files that they name.
    pub fn check(&self) -> Result<(), BuildError> {
        let why = "this binary is built without HTTP: build it with the feature `http`";
        Err(BuildError::option("http", why))
    }

    /// Checks the options, and the files that they name.
    pub fn check_files(&self) -> Result<(), BuildError> {
        self.check()
    }

    /// Makes the handler.
    pub fn build(&self, _: &str) -> Result<Arc<dyn RemoteHandler>, BuildError> {
        self.check().and_then(|()| Err(BuildError::option("http", "there is no HTTP here")))
    }

    /// What `posthaste doctor` says about the receiver.
    pub async fn examine(&self, _: &str) -> Option<Finding> {
        None
    }
}

#[cfg(all(test, feature = "http"))]
mod tests {
    use super::*;
    use serde_json::json;

    fn checked(value: Value) -> Result<(), String> {
        let config: HandlerConfig = serde_json::from_value(value).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())
    }

    #[test]
    fn a_receiver_is_a_url_or_a_table_with_one() {
        for good in [
            json!("http://127.0.0.1:8080/events"),
            json!({ "url": "https://h.example/x", "max_in_flight": 4, "statuses": { "404": "reject" } }),
        ] {
            assert_eq!(checked(good.clone()), Ok(()), "{good}");
        }
        for (bad, words) in [
            (json!("not a url"), "url"),
            (json!(7), "must be a URL, or a table"),
            (json!({ "token": "t" }), "`url` is missing"),
            (json!({ "url": "http://h/", "tokn": "t" }), "unknown field `tokn`"),
            (json!({ "url": "http://h/", "delivery_timeout_ms": 5 }), "`handler_timeout_ms`"),
            (json!({ "url": "http://h/", "max_in_flight": 0 }), "max_in_flight"),
        ] {
            let said = checked(bad.clone()).expect_err("refused");
            assert!(said.contains(words), "{bad}: {said}");
        }
    }
}
