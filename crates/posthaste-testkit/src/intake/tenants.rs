//! The half of tenants.

use super::IntakeFixture;
use posthaste::Timestamp;
use posthaste::admin::{Actor, AuditFilter};
use posthaste::intake::{TenantChange, TenantError, TenantKey, TenantStore};
use std::sync::Arc;

const KEY: &str = "abc123def456";

fn actor() -> Actor {
    Actor::new("ann", "a new customer")
}

fn add(tenant: &str) -> TenantChange {
    TenantChange::Add { tenant: tenant.into(), rate_per_s: None, burst: None, note: None }
}

fn key(id: &str, tenant: &str) -> TenantKey {
    TenantKey {
        id: id.into(),
        tenant: tenant.into(),
        hash: [7; 32],
        topics: None,
        note: None,
        created_at: Timestamp::default(),
        expires_at: None,
        revoked_at: None,
    }
}

async fn version(tenants: &Arc<dyn TenantStore>) -> i64 {
    tenants.version().await.expect("a look").0
}

/// The line names what was changed, and never a hash.
pub async fn each_change_raises_the_version_and_is_audited(fixture: &impl IntakeFixture) {
    let (tenants, admin) = (fixture.tenants().await, fixture.admin().await);
    let tenant: Arc<str> = "acme".into();
    let set = TenantChange::Set {
        tenant: Arc::clone(&tenant),
        rate_per_s: Some(Some(5.5)),
        burst: Some(None),
        note: None,
    };
    let pause = |paused| TenantChange::Pause { tenant: Arc::clone(&tenant), paused };
    let changes = [
        add("acme"),
        set,
        pause(true),
        pause(false),
        TenantChange::NewKey(key(KEY, "acme")),
        TenantChange::Revoke { id: KEY.into() },
        TenantChange::Remove { tenant: Arc::clone(&tenant) },
    ];
    let mut before = version(&tenants).await;
    for change in &changes {
        tenants.change(&actor(), change).await.unwrap_or_else(|error| panic!("{change:?}: {error}"));
        let after = version(&tenants).await;
        assert!(after > before, "{change:?}");
        before = after;
    }
    assert_eq!(tenants.roster().await.expect("a look").version, before);
    let lines = admin.audit_lines(&AuditFilter::default(), None, 20).await.expect("the audit");
    let mut actions: Vec<&str> = lines.iter().map(|line| line.action.as_str()).collect();
    actions.reverse();
    assert_eq!(
        actions,
        [
            "gateway.tenant.add",
            "gateway.tenant.set",
            "gateway.tenant.pause",
            "gateway.tenant.resume",
            "gateway.key.new",
            "gateway.key.revoke",
            "gateway.tenant.remove",
        ]
    );
    for line in &lines {
        assert_eq!((&*line.actor, &*line.reason), ("ann", "a new customer"));
        let text = line.detail.to_string();
        assert!(!text.contains("hash") && !text.contains("070707") && !text.contains("7,7"), "{text}");
        assert!(text.contains("acme") || text.contains(KEY), "{text}");
    }
}

/// As everybody has it who is given the first key.
pub async fn a_new_key_makes_its_tenant(fixture: &impl IntakeFixture) {
    let tenants = fixture.tenants().await;
    tenants.change(&actor(), &TenantChange::NewKey(key(KEY, "acme"))).await.expect("a key");
    tenants.change(&actor(), &TenantChange::NewKey(key("000000000000", "acme"))).await.expect("a second one");
    let roster = tenants.roster().await.expect("a look");
    assert_eq!((roster.tenants.len(), roster.keys.len()), (1, 2));
    assert_eq!(&*roster.tenants[0].tenant, "acme");
    assert_eq!(&*roster.keys[0].id, "000000000000");
    tenants.change(&actor(), &TenantChange::Remove { tenant: "acme".into() }).await.expect("removed");
    let roster = tenants.roster().await.expect("a look");
    assert!(roster.tenants.is_empty() && roster.keys.is_empty());
}

/// Every field comes back.
pub async fn the_roster_says_everything(fixture: &impl IntakeFixture) {
    let tenants = fixture.tenants().await;
    let (_, now) = tenants.version().await.expect("a look");
    let first = TenantChange::Add {
        tenant: "b".into(),
        rate_per_s: Some(0.5),
        burst: Some(1_000_000),
        note: Some("a 'note'".to_owned()),
    };
    for change in [first, add("a")] {
        tenants.change(&actor(), &change).await.expect("added");
    }
    let expires = Timestamp(now.0 + 90 * 86_400 * 1_000_000);
    let given = TenantKey {
        topics: Some(vec!["t.v1".to_owned(), "u, \"v\"".to_owned()]),
        note: Some("laptop".to_owned()),
        expires_at: Some(expires),
        ..key(KEY, "b")
    };
    tenants.change(&actor(), &TenantChange::NewKey(given.clone())).await.expect("a key");
    let roster = tenants.roster().await.expect("a look");
    let names: Vec<&str> = roster.tenants.iter().map(|tenant| &*tenant.tenant).collect();
    assert_eq!(names, ["a", "b"]);
    let (plain, full) = (&roster.tenants[0], &roster.tenants[1]);
    assert_eq!((plain.rate_per_s, plain.burst, plain.paused, &plain.note), (None, None, false, &None));
    assert_eq!(
        (full.rate_per_s, full.burst, full.note.as_deref()),
        (Some(0.5), Some(1_000_000), Some("a 'note'"))
    );
    assert!(full.changed_at.seconds_since(now).abs() < 60.0);
    let stored = &roster.keys[0];
    assert!(stored.created_at.seconds_since(now).abs() < 60.0);
    assert_eq!(*stored, TenantKey { created_at: stored.created_at, ..given });
    tenants.change(&actor(), &TenantChange::Revoke { id: KEY.into() }).await.expect("revoked");
    let revoked = tenants.roster().await.expect("a look").keys[0].revoked_at.expect("revoked");
    tenants.change(&actor(), &TenantChange::Revoke { id: KEY.into() }).await.expect("revoked twice");
    assert_eq!(tenants.roster().await.expect("a look").keys[0].revoked_at, Some(revoked));
    // Each part by itself.
    let (rate_per_s, burst) = (Some(Some(2.0)), None);
    let set = TenantChange::Set { tenant: "b".into(), rate_per_s, burst, note: None };
    tenants.change(&actor(), &set).await.expect("set");
    let (rate_per_s, burst, note) = (Some(None), Some(Some(9)), Some("other".to_owned()));
    let pause = TenantChange::Pause { tenant: "a".into(), paused: true };
    for change in [TenantChange::Set { tenant: "a".into(), rate_per_s, burst, note }, pause] {
        tenants.change(&actor(), &change).await.expect("set");
    }
    let roster = tenants.roster().await.expect("a look");
    let (plain, full) = (&roster.tenants[0], &roster.tenants[1]);
    assert_eq!((plain.rate_per_s, plain.burst, plain.paused), (None, Some(9), true));
    assert_eq!(plain.note.as_deref(), Some("other"));
    assert_eq!(
        (full.rate_per_s, full.burst, full.note.as_deref()),
        (Some(2.0), Some(1_000_000), Some("a 'note'"))
    );
}

/// In words, and without a line in the audit.
pub async fn what_cannot_be_is_refused_and_changes_nothing(fixture: &impl IntakeFixture) {
    let tenants = fixture.tenants().await;
    tenants.change(&actor(), &add("acme")).await.expect("added");
    tenants.change(&actor(), &TenantChange::NewKey(key(KEY, "acme"))).await.expect("a key");
    let before = (tenants.roster().await.expect("a look"), lines(fixture).await);
    let rate = |rate| TenantChange::Set {
        tenant: "acme".into(),
        rate_per_s: Some(Some(rate)),
        burst: None,
        note: None,
    };
    for change in [
        rate(f64::NAN),
        rate(f64::INFINITY),
        rate(0.0),
        rate(100_001.0),
        add("a b"),
        add(""),
        TenantChange::NewKey(key("SHORT", "acme")),
        TenantChange::NewKey(key(KEY, "other")),
    ] {
        let error = tenants.change(&actor(), &change).await.expect_err("refused");
        assert!(matches!(error, TenantError::Invalid(_)), "{change:?}: {error:?}");
    }
    let error = tenants.change(&actor(), &add("acme")).await.expect_err("refused");
    assert!(matches!(error, TenantError::Exists(_)), "{error:?}");
    let nobody: Arc<str> = "nobody".into();
    for change in [
        TenantChange::Pause { tenant: Arc::clone(&nobody), paused: true },
        TenantChange::Remove { tenant: Arc::clone(&nobody) },
        TenantChange::Set { tenant: nobody, rate_per_s: None, burst: None, note: None },
    ] {
        let error = tenants.change(&actor(), &change).await.expect_err("refused");
        assert!(matches!(error, TenantError::NoTenant(_)), "{change:?}: {error:?}");
    }
    let unknown = TenantChange::Revoke { id: "zzzzzzzzzzzz".into() };
    let error = tenants.change(&actor(), &unknown).await.expect_err("refused");
    assert!(matches!(error, TenantError::NoKey(_)), "{error:?}");
    let unnamed = tenants.change(&Actor::new("", "x"), &add("b")).await.expect_err("refused");
    assert!(matches!(unnamed, TenantError::Invalid(_)), "{unnamed:?}");
    assert_eq!((tenants.roster().await.expect("a look"), lines(fixture).await), before);
}

async fn lines(fixture: &impl IntakeFixture) -> usize {
    let lines = fixture.admin().await.audit_lines(&AuditFilter::default(), None, 50).await;
    lines.expect("the audit").len()
}
