//! The kinds of brokers, whether or not they are built in: their names, the schemes of their addresses, and
//! what others ask about a kind without building a sink.

/// A kind of broker.
struct BrokerKind {
    /// Its `type` in the configuration.
    name: &'static str,
    /// The schemes of its addresses.
    schemes: &'static [&'static str],
    /// Whether this build has it.
    built_in: bool,
    /// An address, for people.
    address: &'static str,
    /// The option that an address means by a single word before its `@`.
    single_login: &'static str,
    /// A line about logging in, for a new configuration that says nothing about it.
    login_comment: &'static str,
    /// Codes of a destination that the broker does not have.
    no_destination: &'static [&'static str],
}

const KINDS: [BrokerKind; 5] = [
    BrokerKind {
        name: "kafka",
        schemes: &["kafka"],
        built_in: cfg!(feature = "kafka"),
        address: "kafka://HOST:9092",
        single_login: "user",
        login_comment: "",
        no_destination: &["kafka.no_topic"],
    },
    BrokerKind {
        name: "nats",
        schemes: &["nats", "tls", "ws", "wss"],
        built_in: cfg!(feature = "nats"),
        address: "nats://HOST:4222",
        single_login: "token",
        login_comment: "# creds_file = \"/run/secrets/nats.creds\"\n",
        no_destination: &["nats.no_stream"],
    },
    BrokerKind {
        name: "redis",
        schemes: &["redis", "rediss"],
        built_in: cfg!(feature = "redis"),
        address: "redis://HOST",
        single_login: "user",
        login_comment: "",
        // A stream is made by the first entry.
        no_destination: &[],
    },
    BrokerKind {
        name: "rabbitmq",
        schemes: &["amqp", "amqps"],
        built_in: cfg!(feature = "rabbitmq"),
        address: "amqp://HOST",
        single_login: "user",
        login_comment: "",
        no_destination: &["rabbitmq.no_exchange", "rabbitmq.unroutable"],
    },
    BrokerKind {
        name: "http",
        schemes: &["http", "https"],
        built_in: cfg!(feature = "http"),
        address: "https://HOST",
        single_login: "token",
        login_comment: "",
        // A server that answers 404 may have the path tomorrow, so this is no sure sign.
        no_destination: &[],
    },
];

fn of_url(url: &str) -> Option<&'static BrokerKind> {
    let (scheme, _) = url.split_once("://")?;
    KINDS.iter().find(|kind| kind.schemes.contains(&scheme))
}

/// The kind of sink that an address belongs to: `nats` for `tls://host`.
#[must_use]
pub fn kind_of(url: &str) -> Option<&'static str> {
    of_url(url).map(|kind| kind.name)
}

/// What to say about a kind of broker that exists and was left out of this build: what is missing, and what
/// to do.
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

/// Addresses of all kinds, for people: `nats://HOST:4222`.
pub fn addresses() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.address)
}

/// Codes of all kinds that mean a destination which the broker does not have.
pub fn no_destination() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.no_destination).copied()
}

/// A line about logging in, for the configuration of a sink at this address. It may be empty.
#[must_use]
pub fn login_comment(url: &str) -> &'static str {
    of_url(url).map_or("", |kind| kind.login_comment)
}

/// A part of a login, as an option of a sink's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginOption<'a> {
    /// The option's name.
    pub name: &'static str,
    /// Its value.
    pub value: &'a str,
    /// Whether nobody may see the value. Then there is an option `NAME_file`, too.
    pub is_secret: bool,
}

/// Takes the login out of an address, because a sink has options for it.
#[must_use]
pub fn split_login(url: &str) -> (String, Vec<LoginOption<'_>>) {
    let option = |name, value| LoginOption { name, value, is_secret: name != "user" };
    let parts = url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?)));
    let Some((scheme, (login, host))) = parts else { return (url.to_owned(), Vec::new()) };
    let options = match login.split_once(':') {
        Some((user, password)) => vec![option("user", user), option("password", password)],
        None => vec![option(of_url(url).map_or("user", |kind| kind.single_login), login)],
    };
    let said = options.into_iter().filter(|option| !option.value.is_empty());
    (format!("{scheme}://{host}"), said.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SinkConfig;
    use proptest::prelude::*;

    #[test]
    fn every_kind_of_this_build_can_be_configured() {
        for kind in built_in() {
            let read = SinkConfig::read(kind, serde_json::Map::new());
            let unknown = read.is_err_and(|error| error.to_string().contains("no sink is called"));
            assert!(!unknown, "`{kind}` has no arm in SinkConfig::read");
        }
    }

    proptest! {
        /// Nothing before the last `@` stays in the address, whatever it is.
        #[test]
        fn any_login_is_taken_out(url in "([a-z]{1,5}://)?([:@/]{1,2}|\\PC{1,2}){0,8}") {
            let (bare, options) = split_login(&url);
            prop_assert!(!url.contains("://") || !bare[bare.find("://").unwrap_or(0)..].contains('@'));
            prop_assert!(options.iter().all(|option| !option.value.is_empty()));
        }
    }

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
        assert!(KINDS.iter().all(|kind| kind_of(kind.address) == Some(kind.name)));
    }

    #[test]
    fn a_login_becomes_options() {
        let (user, password) = (("user", "u", false), ("password", "p", true));
        let table = [
            ("nats://h:4222", "nats://h:4222", vec![]),
            ("amqp://u:p@h/v", "amqp://h/v", vec![user, password]),
            ("redis://:p@h", "redis://h", vec![password]),
            ("nats://t@h", "nats://h", vec![("token", "t", true)]),
            ("rediss://u@h", "rediss://h", vec![user]),
            ("https://u:p@ss@h/x", "https://h/x", vec![user, ("password", "p@ss", true)]),
        ];
        for (url, bare, expected) in table {
            let (address, options) = split_login(url);
            let found: Vec<_> = options.iter().map(|o| (o.name, o.value, o.is_secret)).collect();
            assert_eq!((address.as_str(), found), (bare, expected), "{url}");
        }
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
