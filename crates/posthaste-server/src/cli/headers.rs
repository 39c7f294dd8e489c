//! Which headers a message keeps that is handled again: two flags of `dead replay` and `consumers replay`.

use crate::config::Config;
use crate::output::Usage;
use clap::Args;
use posthaste::consumer::IdentityFrom;
use posthaste::inbox::kept::KeptHeaders;

#[derive(Debug, Default, Args)]
pub(super) struct HeaderArgs {
    /// Of a consumer's messages keep only these headers, exact or with a last *
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "drop_headers")]
    keep_headers: Option<Vec<String>>,
    /// Of a consumer's messages drop these headers, exact or with a last *
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    drop_headers: Option<Vec<String>>,
}

impl HeaderArgs {
    /// What they say for messages of this consumer, which may know them by a header.
    pub(super) fn kept(&self, config: &Config, consumer: &str) -> anyhow::Result<KeptHeaders> {
        let setting = config.consumers.iter().find(|setting| *setting.name == *consumer);
        let header = |from: &IdentityFrom| match from {
            IdentityFrom::Header(name) => Some(name.clone()),
            _ => None,
        };
        let identity: Vec<String> =
            setting.into_iter().flat_map(|setting| &setting.own.identity).filter_map(header).collect();
        let (flag, kept) = match (&self.keep_headers, &self.drop_headers) {
            (Some(names), _) => ("--keep-headers", KeptHeaders::only(names, &identity)),
            (_, Some(names)) => ("--drop-headers", KeptHeaders::but(names, &identity)),
            (None, None) => return Ok(KeptHeaders::default()),
        };
        kept.map_err(|why| Usage(format!("{flag}: {why}. Nothing was done")).into())
    }

    /// Refuses them for events, which go to sinks as they were appended.
    pub(super) fn refuse(&self) -> anyhow::Result<()> {
        if self.keep_headers.is_none() && self.drop_headers.is_none() {
            return Ok(());
        }
        let why = "an event goes to its sink as it was appended: headers can be left out of what a --consumer handles again";
        Err(Usage(why.to_owned()).into())
    }
}
