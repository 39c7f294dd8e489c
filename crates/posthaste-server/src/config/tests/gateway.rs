//! What a gateway may not be: open to the world by mistake, in front of a table that is not ours, or a door
//! through which a client writes wherever it likes.

use super::*;

const SHOP: &str = "[outbox]\nurl = \"postgres://u@h/d\"\n[sinks.s]\ntype = \"stdout\"\n";
const ROUTE: &str = "[[route]]\nname = \"all\"\ntopic = \"orders.*\"\nsink = \"s\"\n";
const TOPIC: &str = "[[gateway.topic]]\ntopic = \"orders.placed\"\n";

fn file(gateway: &str, topic: &str, route: &str) -> String {
    format!("{SHOP}{route}[gateway]\n{gateway}\n{topic}")
}

#[test]
fn a_gateway_needs_little_and_listens_at_home() {
    let config = ok(&file("", TOPIC, ROUTE));
    let gateway = config.gateway.expect("there is one");
    assert!(gateway.listen.ip().is_loopback() && gateway.certificate.is_none());
    assert_eq!(&*gateway.outbox, "default");
    assert!(ok(&format!("{SHOP}{ROUTE}")).gateway.is_none(), "none without its section");
}

#[test]
fn what_is_wrong_of_a_gateway_is_told_with_its_place() {
    let open = "gateway.listen = \"0.0.0.0:7680\" can be reached by others";
    let home = "listen = \"127.0.0.1:0\"";
    let many = |more: &str| format!("{home}\n{more}");
    let table = [
        (file("listen = \"0.0.0.0:7680\"", TOPIC, ROUTE), open),
        (
            file("listen = \"[::]:7680\"", TOPIC, ROUTE),
            "needs `cert_file` and `key_file`. Nothing was started",
        ),
        (file(&many("cert_file = \"c.pem\""), TOPIC, ROUTE), "belong together"),
        (file(home, "", ROUTE), "a gateway offers topics: write [[gateway.topic]]"),
        (
            file(home, "[[gateway.topic]]\ntopic = \"bills.paid\"\n", ROUTE),
            "no route of outbox `default` takes the topic `bills.paid`: its events would go nowhere",
        ),
        (file(home, "[[gateway.topic]]\ntopic = \"orders.*\"\n", ROUTE), "must be the exact name of a topic"),
        (file(home, "[[gateway.topic]]\n", ROUTE), "must be the exact name of a topic"),
        (file(&many("outbox = \"shpo\""), TOPIC, ROUTE), "there is no outbox `shpo`"),
        (
            file("lisen = \"127.0.0.1:0\"", TOPIC, ROUTE),
            "unknown key `gateway.lisen`, did you mean `listen`?",
        ),
        (
            file(&many("bounds = { body_byte_max = 1 }"), TOPIC, ROUTE),
            "unknown key `gateway.bounds.body_byte_max`, did you mean `body_bytes_max`?",
        ),
        (
            file(&many("limit = { rate_pers = 1 }"), TOPIC, ROUTE),
            "unknown key `gateway.limit.rate_pers`, did you mean `rate_per_s`?",
        ),
        (
            file(home, &format!("{TOPIC}content_type = []\n"), ROUTE),
            "unknown key `gateway.topic[0].content_type`, did you mean `content_types`?",
        ),
        (
            file(&many("limit = { on_loss = \"opne\" }"), TOPIC, ROUTE),
            "`gateway.limit.on_loss` cannot be `opne`",
        ),
        (file(&many("limit = { rate_per_s = 0 }"), TOPIC, ROUTE), "rate_per_s must be above 0"),
        (
            file(&many("limit = { rate_per_s = nan }"), TOPIC, ROUTE),
            "`gateway.limit.rate_per_s` must be a number",
        ),
        (file(&many("limit = { burst = 0 }"), TOPIC, ROUTE), "burst must be between 1 and 1000000"),
        (file(&many("limit = { gateways = 0 }"), TOPIC, ROUTE), "gateway.limit.gateways must be at least 1"),
        (file(&many("bounds = { requests_max = 7 }"), TOPIC, ROUTE), "requests_max must be at least 8"),
        (
            file(&many("bounds = { body_bytes_max = 1000, inflight_bytes_max = 7999 }"), TOPIC, ROUTE),
            "at least eight times body_bytes_max",
        ),
        (
            file(home, &format!("{TOPIC}schema_file = \"/nonexistent/order.json\"\n"), ROUTE),
            "line 13: schema_file /nonexistent/order.json",
        ),
    ];
    for (text, expected) in table {
        let error = wrong(&text);
        assert!(error.contains(expected), "{text}\n gave: {error}\n want: {expected}");
    }
    ok(&file("listen = \"0.0.0.0:7680\"\ninsecure = true", TOPIC, ROUTE));
}

/// §13.11: an address that a client can choose would let one tenant write where another one reads.
#[test]
fn no_client_chooses_a_destination() {
    let route = |destination: &str| {
        format!(
            "[[route]]\nname = \"all\"\ntopic = \"orders.*\"\nsink = \"s\"\ndestination = {destination:?}\n"
        )
    };
    let client = format!("{TOPIC}key = \"client\"\n");
    let types = format!("{TOPIC}types = [\"a\", \"b\"]\n");
    for (topic, destination, part) in [
        (TOPIC, "to.{header:where}", "{header:where}"),
        (TOPIC, "to.{type}", "{type}"),
        (&client, "to.{key}", "{key}"),
        (&types, "to.{type}.{header:x}", "{header:x}"),
    ] {
        let error = wrong(&file("", topic, &route(destination)));
        assert!(error.contains(&format!("makes the destination of `{part}`")), "{destination}: {error}");
        assert!(error.contains("which a client sets"), "{error}");
    }
    for (topic, destination) in
        [(TOPIC, "to.{header:tenant_id}"), (TOPIC, "to.{topic}"), (TOPIC, "to.{key}"), (&types, "to.{type}")]
    {
        ok(&file("", topic, &route(destination)));
    }
}

#[test]
fn an_adopted_table_takes_no_events_of_tenants() {
    let text = format!(
        "[outbox]\nurl = \"postgres://h/d\"\n[outbox.adopt]\npreset = \"outbox-events\"\ntable = \"app.events\"\n\
         [sinks.s]\ntype = \"stdout\"\n{ROUTE}[gateway]\n{TOPIC}"
    );
    let error = wrong(&text);
    assert!(error.contains("is an adopted table, and a gateway needs our own schema"), "{error}");
}

/// A file of SQLite whose commits a power cut may take back is no place for a 202.
#[cfg(feature = "sqlite")]
#[test]
fn a_database_that_forgets_is_refused_when_it_starts() {
    let text =
        file("", TOPIC, ROUTE).replace("postgres://u@h/d", "sqlite:/nonexistent/x.db?synchronous=normal");
    let config = ok(&text);
    let gateway = config.gateway.expect("there is one");
    let error = gateway.database.intake(gateway.intake_bounds()).err().expect("it is refused").to_string();
    assert!(error.contains("synchronous=normal"), "{error}");
}
