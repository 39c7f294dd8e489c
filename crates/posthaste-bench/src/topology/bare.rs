//! The bare requests: topics by rdkafka's safe API, rights by a few bytes on a socket, because that API has
//! no call for them. Requests are as large as those of the command.

use super::Names;
use anyhow::{Context as _, bail, ensure};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication, TopicResult};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that is on its way.
const PAUSE: Duration = Duration::from_millis(200);
/// Resources of one request.
const AT_ONCE: usize = 200;

/// Numbers of Kafka's protocol: requests, and what a right is made of.
const DESCRIBE_ACLS: i16 = 29;
const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
/// The last version of these three without tagged fields.
const VERSION: i16 = 1;
const ANY: u8 = 1;
const TOPIC: u8 = 2;
const GROUP: u8 = 3;
const LITERAL: u8 = 3;
const READ: u8 = 3;
const ALLOW: u8 = 3;

/// A cluster by its addresses.
pub(super) struct BareCluster {
    servers: String,
}

impl BareCluster {
    pub(super) fn new(servers: &str) -> Self {
        Self { servers: servers.to_owned() }
    }

    fn client(&self) -> anyhow::Result<AdminClient<DefaultClientContext>> {
        Ok(ClientConfig::new().set("bootstrap.servers", &self.servers).create()?)
    }

    fn options() -> AdminOptions {
        AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE))
    }

    /// Everything that a plan has to know, and nothing made of it.
    pub(super) async fn look(&self, names: &Names) -> anyhow::Result<()> {
        let client = self.client()?;
        let metadata = tokio::task::block_in_place(|| client.inner().fetch_metadata(None, PATIENCE))?;
        ensure!(metadata.topics().len() >= names.topics.len(), "topics are missing");
        for batch in names.topics.chunks(AT_ONCE) {
            let asked: Vec<_> = batch.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
            let answers = client.describe_configs(&asked, &Self::options()).await?;
            ensure!(answers.iter().all(Result::is_ok), "settings cannot be seen");
        }
        let mut line = Line::open(&self.servers).await?;
        let mut body = Vec::new();
        filter(&mut body, None);
        let mut answer = line.ask(DESCRIBE_ACLS, &body).await?;
        answer.refusal()?;
        Ok(())
    }

    /// Makes all of it.
    pub(super) async fn make(&self, names: &Names) -> anyhow::Result<()> {
        let client = self.client()?;
        let replicas = || TopicReplication::Fixed(names.replicas as i32);
        for batch in names.topics.chunks(AT_ONCE) {
            let topics: Vec<_> = batch
                .iter()
                .map(|name| NewTopic::new(name, 1, replicas()).set("retention.ms", "604800000"))
                .collect();
            all_done(client.create_topics(&topics, &Self::options()).await)?;
        }
        let mut line = Line::open(&self.servers).await?;
        let rights: Vec<(u8, &str, &str)> = names
            .principals
            .iter()
            .flat_map(|(name, reads)| {
                let reads = reads.iter().map(move |read| (TOPIC, read.as_str(), name.as_str()));
                reads.chain([(GROUP, name.as_str(), name.as_str())])
            })
            .collect();
        for batch in rights.chunks(AT_ONCE) {
            let mut body = count(batch.len());
            for (kind, on, who) in batch {
                body.push(*kind);
                text(&mut body, on);
                body.push(LITERAL);
                text(&mut body, &format!("User:{who}"));
                text(&mut body, "*");
                body.extend([READ, ALLOW]);
            }
            let mut answer = line.ask(CREATE_ACLS, &body).await?;
            answer.number::<4>()?;
            for _ in 0..answer.number::<4>()? {
                answer.code()?;
            }
        }
        Ok(())
    }

    /// Takes all of it away, and waits until it is gone.
    pub(super) async fn remove(&self, names: &Names) -> anyhow::Result<()> {
        let client = self.client()?;
        for batch in names.topics.chunks(AT_ONCE) {
            let topics: Vec<&str> = batch.iter().map(String::as_str).collect();
            all_done(client.delete_topics(&topics, &Self::options()).await)?;
        }
        let mut line = Line::open(&self.servers).await?;
        let mut body = count(names.principals.len());
        for (name, _) in &names.principals {
            filter(&mut body, Some(&format!("User:{name}")));
        }
        let mut answer = line.ask(DELETE_ACLS, &body).await?;
        answer.number::<4>()?;
        ensure!(answer.number::<4>()? as usize == names.principals.len(), "rights cannot be taken away");
        loop {
            let metadata = tokio::task::block_in_place(|| client.inner().fetch_metadata(None, PATIENCE))?;
            if !metadata.topics().iter().any(|topic| names.topics.iter().any(|name| name == topic.name())) {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await; // pace
        }
    }
}

fn all_done(answers: Result<Vec<TopicResult>, KafkaError>) -> anyhow::Result<()> {
    match answers?.into_iter().find_map(Result::err) {
        Some((topic, code)) => bail!("{topic}: {code}"),
        None => Ok(()),
    }
}

fn count(count: usize) -> Vec<u8> {
    (count as i32).to_be_bytes().to_vec()
}

fn text(body: &mut Vec<u8>, text: &str) {
    body.extend((text.len() as i16).to_be_bytes());
    body.extend(text.as_bytes());
}

/// All rights, or all of somebody.
fn filter(body: &mut Vec<u8>, who: Option<&str>) {
    const NULL: [u8; 2] = (-1_i16).to_be_bytes();
    body.push(ANY);
    body.extend(NULL);
    body.push(ANY);
    match who {
        Some(who) => text(body, who),
        None => body.extend(NULL),
    }
    body.extend(NULL);
    body.extend([ANY, ANY]);
}

/// A connection on which one request waits for its answer.
struct Line(TcpStream);

impl Line {
    async fn open(servers: &str) -> anyhow::Result<Self> {
        let first = servers.split(',').next().unwrap_or_default();
        Ok(Self(TcpStream::connect(first).await.with_context(|| format!("cannot reach {first}"))?))
    }

    async fn ask(&mut self, request: i16, body: &[u8]) -> anyhow::Result<BareAnswer> {
        let mut head = Vec::new();
        head.extend(request.to_be_bytes());
        head.extend(VERSION.to_be_bytes());
        head.extend(7_i32.to_be_bytes());
        text(&mut head, "posthaste-bench");
        let length = (head.len() + body.len()) as i32;
        self.0.write_all(&[&length.to_be_bytes()[..], &head, body].concat()).await?;
        let length = self.0.read_i32().await?;
        let mut bytes = vec![0; usize::try_from(length).context("a length below nothing")?];
        self.0.read_exact(&mut bytes).await?;
        let mut answer = BareAnswer { bytes, at: 0 };
        ensure!(answer.number::<4>()? == 7, "an answer to something else");
        Ok(answer)
    }
}

/// What a broker said, read from its beginning.
struct BareAnswer {
    bytes: Vec<u8>,
    at: usize,
}

impl BareAnswer {
    fn take(&mut self, count: usize) -> anyhow::Result<&[u8]> {
        let taken = self.bytes.get(self.at..self.at + count).context("the answer ends too soon")?;
        self.at += count;
        Ok(taken)
    }

    /// A number of so many bytes.
    fn number<const BYTES: usize>(&mut self) -> anyhow::Result<i64> {
        let bytes = self.take(BYTES)?;
        let sign = if bytes.first().is_some_and(|first| *first > 127) { -1 } else { 0 };
        Ok(bytes.iter().fold(sign, |number, byte| number << 8 | i64::from(*byte)))
    }

    /// A code and its words. An error, if it is one.
    fn code(&mut self) -> anyhow::Result<()> {
        let code = self.number::<2>()?;
        let length = usize::try_from(self.number::<2>()?).unwrap_or(0);
        let words = String::from_utf8_lossy(self.take(length)?).into_owned();
        ensure!(code == 0, "the broker refuses: {code} {words}");
        Ok(())
    }

    /// The same behind the time for which we are throttled.
    fn refusal(&mut self) -> anyhow::Result<()> {
        self.number::<4>()?;
        self.code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_from_its_beginning() {
        let mut answer = BareAnswer { bytes: vec![0, 0, 0, 7, 255, 255, 0, 1, b'x', 0, 0, 255, 255], at: 0 };
        assert_eq!(answer.number::<4>().expect("a number"), 7);
        assert!(answer.code().expect_err("an error").to_string().contains("-1 x"));
        answer.code().expect("no error, no words");
        assert!(answer.code().is_err(), "nothing is left");
    }
}
