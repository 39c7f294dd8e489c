use super::*;
use proptest::prelude::*;
use std::sync::Mutex;

fn guard(networks: &[&str]) -> Guard {
    let networks: Vec<_> = networks.iter().map(|text| (*text).to_owned()).collect();
    Guard::new(false, &networks).expect("networks")
}

fn admits(guard: &Guard, address: &str) -> bool {
    guard.admits(address.parse().expect(address))
}

#[test]
fn f47_only_public_addresses_are_admitted() {
    let guard = guard(&[]);
    for private in [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "3fff::1",
        "100::1",
        "5f00::1",
        // The same in other clothes.
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
    ] {
        assert!(!admits(&guard, private), "{private}");
    }
    for public in [
        "1.1.1.1",
        "8.8.8.8",
        "93.184.216.34",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.255.255",
        "172.32.0.1",
        "192.0.1.1",
        "192.167.1.1",
        "198.17.0.1",
        "198.20.0.1",
        "223.255.255.254",
        "2606:4700::1111",
        "2a00:1450::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ] {
        assert!(admits(&guard, public), "{public}");
    }
}

#[test]
fn networks_open_what_they_name() {
    let guard = guard(&["10.1.0.0/16", "fd12::/16", "127.0.0.1"]);
    for open in ["10.1.2.3", "::ffff:10.1.2.3", "fd12:3::1", "127.0.0.1", "8.8.8.8"] {
        assert!(admits(&guard, open), "{open}");
    }
    for shut in ["10.2.0.1", "fd13::1", "127.0.0.2", "169.254.169.254"] {
        assert!(!admits(&guard, shut), "{shut}");
    }
    assert!(Guard::new(true, &[]).expect("open").admits("127.0.0.1".parse().expect("an address")));
    for bad in ["", "10.0.0.0/33", "10/8", "::/129", "10.0.0.0/x", "host", "10.0.0.0/8/8", "10.0.0.0/-1"] {
        assert!(Guard::new(false, &[bad.to_owned()]).is_err(), "{bad}");
    }
    let all = Guard::new(false, &["0.0.0.0/0".to_owned(), "::/0".to_owned()]).expect("networks");
    assert!(admits(&all, "10.0.0.1") && admits(&all, "::1"));
}

/// Every spelling of an address in a URL is that address.
#[test]
fn f47_addresses_in_urls_are_judged_however_they_are_written() {
    let guard = guard(&[]);
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "017700000001",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "①②⑦.0.0.1",
        "0",
        "169.254.169.254",
        "0xa9fea9fe",
        "2852039166",
        "127.0.0.1.",
    ] {
        let url = Url::parse(&format!("http://{host}:8080/x")).expect(host);
        assert!(guard.check_literal(&url).is_err(), "{host} is {url}");
    }
    let url = Url::parse("http://8.8.8.8/").expect("a URL");
    assert_eq!(guard.check_literal(&url), Ok(()));
}

/// Answers one list after another.
struct Script(Mutex<Vec<Vec<&'static str>>>);

impl Lookup for Script {
    fn lookup(&self, _: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        let next = self.0.lock().expect("not poisoned").remove(0);
        let addresses = next.into_iter().map(|text| text.parse().expect("an address")).collect();
        Box::pin(async move { Ok(addresses) })
    }
}

#[tokio::test]
async fn f47_a_name_that_changes_its_mind_gains_nothing() {
    let answers = vec![vec!["93.184.216.34"], vec!["127.0.0.1"], vec!["10.0.0.1", "8.8.8.8"], vec![]];
    let lookup = Arc::new(Script(Mutex::new(answers)));
    let guarded = Guarded { guard: Arc::new(guard(&[])), lookup };
    let ask = async || {
        let admitted = guarded.admitted("rebind.example", None).await;
        admitted.map(|addresses| addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>())
    };
    assert_eq!(ask().await.expect("public"), ["93.184.216.34"]);
    let refused = ask().await.expect_err("private");
    assert!(refused.is::<Forbidden>(), "{refused}");
    assert!(refused.to_string().starts_with("rebind.example is 127.0.0.1"), "{refused}");
    // Of a mixed answer only the public part is ever connected to.
    assert_eq!(ask().await.expect("partly public"), ["8.8.8.8"]);
    assert!(!ask().await.expect_err("nothing").is::<Forbidden>());
    // An address in the URL is judged at the same door, and asks nobody.
    let literal = async |text: &str| guarded.admitted(text, text.parse().ok()).await;
    assert_eq!(literal("8.8.8.8").await.expect("public"), ["8.8.8.8".parse::<IpAddr>().expect("an address")]);
    assert!(literal("127.0.0.1").await.expect_err("private").is::<Forbidden>());
}

fn open(system: &System) -> usize {
    system.open.lock().expect("not poisoned").len()
}

/// All threads hang: a name waits a moment for one of them, and not at all for nobody.
#[tokio::test(start_paused = true)]
async fn g7_a_resolver_that_hangs_is_said_to_be_busy() {
    let system = System::default();
    let all = system.room.acquire_many(LOOKUPS_MAX as u32).await.expect("open");
    let names = |n: usize| system.lookup(format!("{n}.invalid"));
    let waiting: Vec<_> = (0..OPEN_MAX).map(names).collect();
    assert_eq!((open(&system), system.room.available_permits()), (OPEN_MAX, 0));
    assert!(names(OPEN_MAX).await.expect_err("one too many").to_string().contains("busy"));
    let mut waiting = waiting.into_iter();
    let (one, same) = (waiting.next().expect("one"), names(0));
    drop(waiting);
    for _ in 0..10 * OPEN_MAX {
        tokio::task::yield_now().await;
    }
    assert_eq!(open(&system), 1, "what nobody waits for is forgotten");
    let (one, same) = tokio::join!(one, same);
    assert!(one.and(same).expect_err("no room").to_string().contains("busy"));
    assert_eq!(open(&system), 0);
    drop(all);
    assert!(system.lookup("localhost".to_owned()).await.is_ok_and(|found| !found.is_empty()));
}

proptest! {
    #[test]
    fn any_text_is_a_network_or_none(text in "[0-9a-f.:]{1,16}/[0-9]{1,4}|[0-9.]{1,12}|\\PC{0,20}") {
        if let Some(network) = Network::parse(&text) {
            prop_assert!(network.contains(network.base));
        }
    }

    #[test]
    fn a_network_holds_what_begins_like_it(base: u32, other: u32, length in 0..=32_u8) {
        let network = Network { base: IpAddr::from(base.to_be_bytes()), length };
        let shared = (base ^ other).leading_zeros() >= u32::from(length);
        prop_assert_eq!(network.contains(IpAddr::from(other.to_be_bytes())), shared);
    }
}
