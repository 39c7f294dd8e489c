//! The address of a broker: `amqp://host:port/vhost`.

use super::frames::SHORT_MAX;
use crate::address::{Address, Scheme, Shape};
use std::fmt;

const SHAPE: Shape = Shape {
    schemes: &[
        Scheme { name: "amqp", tls: false, port: 5672 },
        Scheme { name: "amqps", tls: true, port: 5671 },
    ],
    needs_scheme: true,
    has_path: true,
    example: "amqp://host:5672/vhost",
    credentials: "user with password_file",
};
const ROOT: &str = "/";

/// A broker and the virtual host there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) vhost: String,
}

impl Server {
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let (address, path) = SHAPE.parse(url)?;
        let vhost = decode(path).ok_or("holds a percent sign that is no escape")?;
        if vhost.len() > SHORT_MAX {
            return Err("holds a virtual host of more than 255 bytes".to_owned());
        }
        // A slash at the end means the usual virtual host. Everybody but the specification reads it so.
        Ok(Self { address, vhost: if vhost.is_empty() { ROOT.to_owned() } else { vhost } })
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.vhost == ROOT {
            return self.address.fmt(f);
        }
        write!(f, "{} (virtual host {:?})", self.address, self.vhost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_virtual_host_can_be_written(vhost in "\\PC{1,60}") {
            let escaped: String = vhost.bytes().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(Server::parse(&format!("amqp://h/{escaped}")).map(|server| server.vhost), Ok(vhost));
        }

        #[test]
        fn any_path_is_a_virtual_host_or_refused(path in "([%0-9a-fg]{1,3}|\\PC{1,2}){0,8}") {
            let decoded = decode(&path);
            prop_assert!(decoded.is_none_or(|vhost| vhost.len() <= path.len()));
        }
    }

    #[test]
    fn addresses() {
        let shown = |url: &str| Server::parse(url).expect(url).to_string();
        for (url, text) in [
            ("amqp://h", "amqp://h:5672"),
            ("amqps://h", "amqps://h:5671"),
            ("amqp://h:1/", "amqp://h:1"),
            ("amqp://h/%2f", "amqp://h:5672"),
            ("amqp://h/shop", "amqp://h:5672 (virtual host \"shop\")"),
            ("amqp://[::1]:7/a%20b", "amqp://[::1]:7 (virtual host \"a b\")"),
        ] {
            assert_eq!(shown(url), text);
        }
        for bad in ["h", "http://h", "amqp://u@h", "amqp://h/%zz", "amqp://h?heartbeat=1"] {
            assert!(Server::parse(bad).is_err(), "{bad}");
        }
    }
}
