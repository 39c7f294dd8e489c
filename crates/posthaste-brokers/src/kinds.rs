//! The kinds of sinks by their names and by the schemes of their addresses, whether or not they are built in.

/// A kind of broker: its `type` in the configuration, the schemes of its addresses, and whether this build has it.
struct Kind {
    name: &'static str,
    schemes: &'static [&'static str],
    built_in: bool,
}

const KINDS: [Kind; 5] = [
    Kind { name: "kafka", schemes: &["kafka"], built_in: cfg!(feature = "kafka") },
    Kind { name: "nats", schemes: &["nats", "tls", "ws", "wss"], built_in: cfg!(feature = "nats") },
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

/// Whether this is a kind of broker that exists and was left out of this build.
#[must_use]
pub fn is_left_out(name: &str) -> bool {
    KINDS.iter().any(|kind| kind.name == name && !kind.built_in)
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
        for (url, kind) in [
            ("tls://h", "nats"),
            ("wss://h", "nats"),
            ("amqps://h/v", "rabbitmq"),
            ("kafka://h:9092", "kafka"),
        ] {
            assert_eq!(kind_of(url), Some(kind));
        }
        assert_eq!((kind_of("mqtt://h"), kind_of("h:4222")), (None, None));
    }
}
