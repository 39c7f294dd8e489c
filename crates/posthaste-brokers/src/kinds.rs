//! The kinds of sinks by their names and by the schemes of their addresses, whether or not they are built in.

/// A kind of broker: its `type` in the configuration, the schemes of its addresses, and whether this build has it.
struct Kind {
    name: &'static str,
    schemes: &'static [&'static str],
    built_in: bool,
}

const KINDS: [Kind; 5] = [
    Kind { name: "kafka", schemes: &["kafka"], built_in: cfg!(feature = "kafka") },
    Kind { name: "nats", schemes: &["nats", "tls"], built_in: cfg!(feature = "nats") },
    Kind { name: "redis", schemes: &["redis", "rediss"], built_in: cfg!(feature = "redis") },
    Kind { name: "rabbitmq", schemes: &["amqp", "amqps"], built_in: cfg!(feature = "rabbitmq") },
    Kind { name: "http", schemes: &["http", "https"], built_in: cfg!(feature = "http") },
];

/// The kind of sink that an address belongs to: `nats` for `tls://host`.
#[must_use]
pub fn kind_of(url: &str) -> Option<&'static str> {
    let (scheme, _) = url.split_once("://")?;
    KINDS.iter().find(|kind| kind.schemes.contains(&scheme)).map(|kind| kind.name)
}

/// What to say about a kind of broker that exists and was left out of this build: what is missing, and what to do.
#[must_use]
pub fn missing(name: &str) -> Option<String> {
    let built = format!("build it with `--features {name}`, or with `--features full` for all brokers");
    left_out().any(|kind| kind == name).then(|| format!("this binary was built without `{name}`: {built}"))
}

/// The kinds that were left out of this build.
pub fn left_out() -> impl Iterator<Item = &'static str> {
    KINDS.iter().filter(|kind| !kind.built_in).map(|kind| kind.name)
}

/// The kinds of this build.
pub fn built_in() -> impl Iterator<Item = &'static str> {
    KINDS.iter().filter(|kind| kind.built_in).map(|kind| kind.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_tells_its_kind() {
        for (url, kind) in [("tls://h", "nats"), ("amqps://h/v", "rabbitmq"), ("kafka://h:9092", "kafka")] {
            assert_eq!(kind_of(url), Some(kind));
        }
        assert_eq!((kind_of("mqtt://h"), kind_of("h:4222")), (None, None));
    }

    #[test]
    fn a_kind_is_built_in_or_missing_with_the_feature_that_brings_it() {
        assert_eq!(built_in().count() + left_out().count(), KINDS.len());
        assert!(built_in().all(|kind| missing(kind).is_none()));
        for kind in left_out() {
            let words = missing(kind).expect("it is left out");
            assert!(words.contains(&format!("`--features {kind}`")) && words.contains("`--features full`"));
        }
        assert_eq!(missing("mqtt"), None);
    }
}
