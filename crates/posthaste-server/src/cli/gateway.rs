//! `posthaste gateway`: who may hand in events over HTTP.

use super::time::distance;
use super::{Context, explain, rate};
use crate::config::{Config, Outbox};
use crate::http::token::{TENANT_PREFIX, TokenHash, mint};
use crate::output::{Usage, paragraph, table, time as shown_time};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use posthaste::Timestamp;
use posthaste::intake::{Roster, Tenant, TenantChange, TenantError, TenantKey, TenantStore, is_tenant_name};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  posthaste gateway keys new acme                  a key, and its tenant
  posthaste gateway keys new acme --topic orders.placed --expires 90d
  posthaste gateway keys revoke 3f9a1c2b7d10 --reason 'it was in a log'
  posthaste gateway tenants                        who there is
  posthaste gateway tenants set acme --rate 50/s --burst 100
  posthaste gateway tenants pause acme --reason 'they send nonsense'

  curl -d '{\"order\": 1}' -H 'Content-Type: application/json' \\
      -H \"Authorization: Bearer $KEY\" http://127.0.0.1:7680/v1/topics/orders.placed

Gateways know of a change within `tenants.refresh_ms` of [gateway], five seconds
by default. docs/gateway.md shows the whole way.";

const KEY_EXAMPLES: &str = "\
Examples:
  posthaste gateway keys new acme
  posthaste gateway keys new acme --topic orders.placed --expires 90d --note ci

Prints the key, which is shown this once: the database has its hash. A tenant that
is not there yet is made. To rotate, make a second key, use it, revoke the first.";

/// Tenants of the gateway, and their keys
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    of: GatewayCommand,
}

#[derive(Debug, Subcommand)]
enum GatewayCommand {
    /// Show and change tenants
    #[command(after_help = EXAMPLES)]
    Tenants {
        #[command(subcommand)]
        act: Option<TenantCommand>,
    },
    /// Show, make and revoke keys
    #[command(after_help = KEY_EXAMPLES)]
    Keys {
        #[command(subcommand)]
        act: Option<KeyCommand>,
    },
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// Show them, with their limits
    List,
    /// Make one
    Add {
        /// Letters, digits, -, _ and .
        #[arg(value_parser = tenant_name)]
        tenant: Arc<str>,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        why: WhyArgs,
    },
    /// Change its limits
    Set {
        /// Which
        tenant: Arc<str>,
        #[command(flatten)]
        limits: LimitArgs,
        /// Go back to the limits of the configuration, where no other is given
        #[arg(long)]
        default_limits: bool,
        #[command(flatten)]
        why: WhyArgs,
    },
    /// Refuse its requests for now
    Pause {
        /// Which
        tenant: Arc<str>,
        #[command(flatten)]
        why: ReasonArgs,
    },
    /// Take its requests again
    Resume {
        /// Which
        tenant: Arc<str>,
        #[command(flatten)]
        why: WhyArgs,
    },
    /// Remove it with its keys; its events stay
    Remove {
        /// Which
        tenant: Arc<str>,
        #[command(flatten)]
        why: ReasonArgs,
    },
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Show them, without what opens
    List {
        /// Of this tenant
        #[arg(long, value_name = "NAME")]
        tenant: Option<Arc<str>>,
    },
    /// Make one, and print it this once
    #[command(after_help = KEY_EXAMPLES)]
    New {
        /// Whose
        #[arg(value_parser = tenant_name)]
        tenant: Arc<str>,
        /// For this topic; may be repeated [default: all that are offered]
        #[arg(long = "topic", value_name = "TOPIC")]
        topics: Vec<String>,
        /// After how long it ends, like 90d [default: never]
        #[arg(long, value_name = "TIME", value_parser = distance)]
        expires: Option<std::time::Duration>,
        /// What it is for
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
        #[command(flatten)]
        why: WhyArgs,
    },
    /// Let it open nothing any more
    Revoke {
        /// Its id: the second part of the key
        id: Arc<str>,
        #[command(flatten)]
        why: ReasonArgs,
    },
}

#[derive(Debug, Args)]
struct LimitArgs {
    /// Events in a second, like 50/s [default: as the configuration says]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Events at once [default: as the configuration says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    burst: Option<u32>,
    /// For people
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// Of what nobody has to explain.
#[derive(Debug, Args)]
struct WhyArgs {
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    reason: String,
}

/// Of what takes something from somebody.
#[derive(Debug, Args)]
struct ReasonArgs {
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

fn tenant_name(text: &str) -> Result<Arc<str>, String> {
    let why = "a tenant's name has 1 to 64 letters, digits, -, _ or .";
    if is_tenant_name(text) { Ok(text.into()) } else { Err(why.to_owned()) }
}

pub(crate) async fn run(context: &Context, args: GatewayArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = outbox(context, &config)?;
    let tenants = outbox.database.tenants().map_err(|error| explain(outbox, error))?;
    let desk = TenantDesk { context, config: &config, outbox, tenants };
    match args.of {
        GatewayCommand::Tenants { act: None | Some(TenantCommand::List) } => desk.list_tenants().await?,
        GatewayCommand::Tenants { act: Some(act) } => desk.change_tenant(act).await?,
        GatewayCommand::Keys { act: None } => desk.list_keys(None).await?,
        GatewayCommand::Keys { act: Some(KeyCommand::List { tenant }) } => desk.list_keys(tenant).await?,
        GatewayCommand::Keys { act: Some(KeyCommand::New { tenant, topics, expires, note, why }) } => {
            desk.new_key(tenant, topics, expires, note, &why).await?;
        }
        GatewayCommand::Keys { act: Some(KeyCommand::Revoke { id, why }) } => {
            let said = format!("key {id} opens nothing any more, within {}", desk.within());
            desk.change(TenantChange::Revoke { id }, &why.reason, said).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The gateway's, or the only one, or the one that is named.
fn outbox<'a>(context: &Context, config: &'a Config) -> anyhow::Result<&'a Outbox> {
    let of_gateway = config.gateway.as_ref().filter(|_| context.names_no_outbox());
    let found = of_gateway.and_then(|own| config.outboxes.iter().find(|outbox| outbox.name == own.outbox));
    found.map_or_else(|| context.outbox(config), Ok)
}

struct TenantDesk<'a> {
    context: &'a Context,
    config: &'a Config,
    outbox: &'a Outbox,
    tenants: Arc<dyn TenantStore>,
}

impl TenantDesk<'_> {
    async fn roster(&self) -> anyhow::Result<Roster> {
        self.tenants.roster().await.map_err(|error| explain(self.outbox, error))
    }

    /// How long it takes until gateways know.
    fn within(&self) -> String {
        let refresh_ms = self.config.gateway.as_ref().map_or(5_000, |gateway| gateway.tenants.refresh_ms);
        format!("{} s", refresh_ms.div_ceil(1_000))
    }

    async fn change(&self, change: TenantChange, reason: &str, said: String) -> anyhow::Result<()> {
        let actor = self.context.actor(reason);
        self.make(&change, &actor).await?;
        let answer = json!({ "outbox": &*self.outbox.name, "done": true });
        self.context.out().acted(answer, Some(&actor), || said)
    }

    async fn make(&self, change: &TenantChange, actor: &posthaste::admin::Actor) -> anyhow::Result<()> {
        self.tenants.change(actor, change).await.map_err(|error| match error {
            TenantError::Store(error) => explain(self.outbox, error),
            refused => Usage(refused.to_string()).into(),
        })
    }

    async fn change_tenant(&self, act: TenantCommand) -> anyhow::Result<()> {
        let within = self.within();
        let (change, reason, said) = match act {
            TenantCommand::List => return self.list_tenants().await,
            TenantCommand::Add { tenant, limits: LimitArgs { rate, burst, note }, why } => {
                let said =
                    format!("tenant {tenant} is there. It needs a key: posthaste gateway keys new {tenant}");
                (TenantChange::Add { tenant, rate_per_s: rate, burst, note }, why.reason, said)
            }
            TenantCommand::Set { tenant, limits: LimitArgs { rate, burst, note }, default_limits, why } => {
                if !default_limits && rate.is_none() && burst.is_none() && note.is_none() {
                    let why = "say what to set: --rate, --burst, --note or --default-limits";
                    return Err(Usage(why.to_owned()).into());
                }
                let said = format!("gateways hold {tenant} to it within {within}");
                let (rate_per_s, burst) = match default_limits {
                    true => (Some(rate), Some(burst)),
                    false => (rate.map(Some), burst.map(Some)),
                };
                (TenantChange::Set { tenant, rate_per_s, burst, note }, why.reason, said)
            }
            TenantCommand::Pause { tenant, why } => {
                let said = format!("tenant {tenant} is refused with 403 within {within}");
                (TenantChange::Pause { tenant, paused: true }, why.reason, said)
            }
            TenantCommand::Resume { tenant, why } => {
                let said = format!("tenant {tenant} may hand in events again within {within}");
                (TenantChange::Pause { tenant, paused: false }, why.reason, said)
            }
            TenantCommand::Remove { tenant, why } => {
                let said = format!("tenant {tenant} and its keys are gone within {within}; its events stay");
                (TenantChange::Remove { tenant }, why.reason, said)
            }
        };
        self.change(change, &reason, said).await
    }

    async fn new_key(
        &self,
        tenant: Arc<str>,
        topics: Vec<String>,
        expires: Option<std::time::Duration>,
        note: Option<String>,
        why: &WhyArgs,
    ) -> anyhow::Result<()> {
        if let Some(gateway) = &self.config.gateway {
            let is_offered =
                |topic: &&String| !gateway.topics.iter().any(|offered| *offered.topic == ***topic);
            if let Some(unknown) = topics.iter().find(is_offered) {
                let offered: Vec<&str> = gateway.topics.iter().map(|offered| &*offered.topic).collect();
                let why =
                    format!("the gateway does not offer `{unknown}`; it offers: {}", offered.join(", "));
                return Err(Usage(why).into());
            }
        }
        let (_, now) = self.tenants.version().await.map_err(|error| explain(self.outbox, error))?;
        let (id, key) = mint(TENANT_PREFIX)?;
        let ahead =
            |time: std::time::Duration| i64::try_from(time.as_micros()).context("--expires is too far away");
        let row = TenantKey {
            id: id.as_str().into(),
            tenant: Arc::clone(&tenant),
            hash: TokenHash::of(&key).bytes(),
            topics: (!topics.is_empty()).then_some(topics),
            note,
            created_at: now,
            expires_at: expires.map(ahead).transpose()?.map(|micros| now.plus_micros(micros)),
            revoked_at: None,
        };
        let actor = self.context.actor(&why.reason);
        self.make(&TenantChange::NewKey(row), &actor).await?;
        let answer = json!({ "outbox": &*self.outbox.name, "tenant": &*tenant, "id": id, "key": key });
        self.context.out().data(&answer, || {
            format!("{key}\n\nIt is shown this once. Gateways know it within {}.", self.within())
        })
    }

    async fn list_tenants(&self) -> anyhow::Result<()> {
        let roster = self.roster().await?;
        let keys = |tenant: &Tenant| {
            roster.keys.iter().filter(|key| key.tenant == tenant.tenant && key.revoked_at.is_none()).count()
        };
        let shown: Vec<Value> = roster
            .tenants
            .iter()
            .map(|tenant| {
                json!({
                    "tenant": &*tenant.tenant, "rate_per_s": tenant.rate_per_s, "burst": tenant.burst,
                    "paused": tenant.paused, "note": tenant.note, "changed_at": tenant.changed_at, "keys": keys(tenant),
                })
            })
            .collect();
        self.context.out().data(&json!({ "tenants": shown }), || {
            if roster.tenants.is_empty() {
                return paragraph(
                    "There is no tenant yet: `posthaste gateway keys new NAME` makes one with its key.",
                    "",
                );
            }
            let default = "default".to_owned();
            let rows = roster.tenants.iter().map(|tenant| {
                vec![
                    tenant.tenant.to_string(),
                    tenant.rate_per_s.map_or_else(|| default.clone(), |rate| format!("{rate}/s")),
                    tenant.burst.map_or_else(|| default.clone(), |burst| burst.to_string()),
                    keys(tenant).to_string(),
                    if tenant.paused { "paused".to_owned() } else { String::new() },
                    tenant.note.clone().unwrap_or_default(),
                ]
            });
            table(&["TENANT", "RATE", "BURST", "KEYS", "STATE", "NOTE"], rows.collect())
        })
    }

    async fn list_keys(&self, tenant: Option<Arc<str>>) -> anyhow::Result<()> {
        let roster = self.roster().await?;
        let (_, now) = self.tenants.version().await.map_err(|error| explain(self.outbox, error))?;
        let is_meant = |key: &&TenantKey| tenant.as_ref().is_none_or(|tenant| key.tenant == *tenant);
        let keys: Vec<&TenantKey> = roster.keys.iter().filter(is_meant).collect();
        let shown = |key: &&TenantKey| {
            json!({
                "id": &*key.id, "tenant": &*key.tenant, "topics": key.topics, "note": key.note, "state": state(key, now),
                "created_at": key.created_at, "expires_at": key.expires_at, "revoked_at": key.revoked_at,
            })
        };
        let shown: Vec<Value> = keys.iter().map(shown).collect();
        self.context.out().data(&json!({ "keys": shown }), || {
            if keys.is_empty() {
                return paragraph("There is no key yet: `posthaste gateway keys new NAME` makes one.", "");
            }
            let rows = keys.iter().map(|key| {
                vec![
                    key.id.to_string(),
                    key.tenant.to_string(),
                    key.topics.as_ref().map_or_else(|| "all".to_owned(), |topics| topics.join(", ")),
                    state(key, now).to_owned(),
                    key.expires_at.map(shown_time).unwrap_or_default(),
                    key.note.clone().unwrap_or_default(),
                ]
            });
            table(&["ID", "TENANT", "TOPICS", "STATE", "ENDS", "NOTE"], rows.collect())
        })
    }
}

fn state(key: &TenantKey, now: Timestamp) -> &'static str {
    match (key.revoked_at, key.expires_at) {
        (Some(_), _) => "revoked",
        (None, Some(end)) if end <= now => "expired",
        _ => "good",
    }
}
