//! What the console is asked: topics, records, rights. The Java client answers, never ours.

use super::{Kafka, SERVICE, console::ConsoleRow};
use crate::services::ServiceError;
use std::collections::BTreeMap;

/// A record as Kafka's own client has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The partition it lies in.
    pub partition: i32,
    /// Its place in the partition.
    pub offset: i64,
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
    /// The key, if there is one.
    pub key: Option<Vec<u8>>,
    /// The value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
    /// The headers in their order; a value may be null.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// The first header of that name, as text.
    pub fn header(&self, name: &str) -> Option<String> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        value.as_deref().map(|value| String::from_utf8_lossy(value).into_owned())
    }
}

/// A record that anybody might send: any bytes, and no header of ours.
#[derive(Clone, Debug, Default)]
pub struct ForeignRecord {
    /// The key, if there is one.
    pub key: Option<Vec<u8>>,
    /// The value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
    /// The headers in their order; a value may be null.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl ForeignRecord {
    fn line(&self) -> String {
        let field = |bytes: &Option<Vec<u8>>| bytes.as_deref().map_or("-".to_owned(), super::console::hex);
        let mut fields = vec![field(&self.key), field(&self.value)];
        fields
            .extend(self.headers.iter().flat_map(|(name, value)| [super::console::hex(name), field(value)]));
        fields.join(" ")
    }
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    /// Its records are there.
    Commit,
    /// Its records are there for nobody who reads what is committed.
    Abort,
}

/// What a cluster knows of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionReplicas {
    /// Its number.
    pub number: i32,
    /// The node that leads it, if one does.
    pub leader: Option<u32>,
    /// The nodes in sync.
    pub in_sync: Vec<u32>,
}

/// A permission of the authorizer: who may do what with which resource.
#[derive(Clone, Debug)]
pub struct Right {
    principal: String,
    operation: String,
    resource: [String; 2],
    pattern: &'static str,
}

impl Right {
    /// `who` may do `operation` (`WRITE`, `DESCRIBE`, ...) with this topic.
    pub fn topic(who: &str, operation: &str, topic: &str) -> Self {
        Self::on("TOPIC", who, operation, topic)
    }

    /// `who` may do `operation` (`READ`, `DESCRIBE`) with this consumer group.
    pub fn group(who: &str, operation: &str, group: &str) -> Self {
        Self::on("GROUP", who, operation, group)
    }

    /// `who` may do `operation` (`IDEMPOTENT_WRITE`, ...) with the cluster.
    pub fn cluster(who: &str, operation: &str) -> Self {
        Self::on("CLUSTER", who, operation, "kafka-cluster")
    }

    /// The same for all names that begin so.
    #[must_use]
    pub fn prefixed(mut self) -> Self {
        self.pattern = "PREFIXED";
        self
    }

    fn on(kind: &str, who: &str, operation: &str, name: &str) -> Self {
        Self {
            principal: format!("User:{who}"),
            operation: operation.to_owned(),
            resource: [kind.to_owned(), name.to_owned()],
            pattern: "LITERAL",
        }
    }

    fn arguments(&self) -> [&str; 5] {
        let [kind, name] = &self.resource;
        [&self.principal, &self.operation, kind, name, self.pattern]
    }
}

impl Kafka {
    /// Creates a topic with these settings (`min.insync.replicas=2`) and returns when all its replicas are in
    /// sync.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn create_topic(
        &self,
        topic: &str,
        partitions: u32,
        replicas: u32,
        settings: &[&str],
    ) -> Result<(), ServiceError> {
        let (partitions, replicas) = (partitions.to_string(), replicas.to_string());
        let mut arguments = vec![topic, &partitions, &replicas];
        arguments.extend(settings);
        self.ask("create", &arguments).await.map(drop)
    }

    /// Adds partitions to a topic, up to this number.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn grow_topic(&self, topic: &str, partitions: u32) -> Result<(), ServiceError> {
        self.ask("partitions", &[topic, &partitions.to_string()]).await.map(drop)
    }

    /// Deletes a topic.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn delete_topic(&self, topic: &str) -> Result<(), ServiceError> {
        self.ask("delete", &[topic]).await.map(drop)
    }

    /// Changes settings of a topic and returns when a broker shows them. Others keep their values.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn configure_topic(&self, topic: &str, settings: &[&str]) -> Result<(), ServiceError> {
        let mut arguments = vec![topic];
        arguments.extend(settings);
        self.ask("configure", &arguments).await.map(drop)
    }

    /// The partitions of a topic as the cluster sees them now.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn partitions(&self, topic: &str) -> Result<Vec<PartitionReplicas>, ServiceError> {
        let rows = self.ask("describe", &[topic]).await?;
        rows.iter().map(|row| partition(row).ok_or_else(|| strange(row))).collect()
    }

    /// Everything that is in the topic now, partition by partition in the order of the log, read by the Java
    /// client.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn dump(&self, topic: &str) -> Result<Vec<Record>, ServiceError> {
        let rows = self.ask("dump", &[topic]).await?;
        let mut records =
            rows.iter().map(|row| record(row).ok_or_else(|| strange(row))).collect::<Result<Vec<_>, _>>()?;
        records.sort_by_key(|record| (record.partition, record.offset));
        Ok(records)
    }

    /// Sends one record with the Java client (an empty key is none) and gives its partition and offset.
    /// Properties of the client come on top of the plaintext listener's, such as `bootstrap.servers` of
    /// another one.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn produce(
        &self,
        client: &[(&str, &str)],
        topic: &str,
        key: &str,
        value: &str,
    ) -> Result<(i32, i64), ServiceError> {
        let rows = self.console.ask(&self.client(client), "produce", &[topic, key, value]).await?;
        let place = rows.first().and_then(|row| Some((number(row, 0)?, number(row, 1)?)));
        place.ok_or_else(|| ServiceError::failed(SERVICE, "a send without an answer"))
    }

    /// Sends records with the Java client, in order, and in one transaction if it has an end.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn send(
        &self,
        topic: &str,
        records: &[ForeignRecord],
        end: Option<TransactionEnd>,
    ) -> Result<(), ServiceError> {
        let end = end.map_or("", |end| if end == TransactionEnd::Commit { "commit" } else { "abort" });
        let lines: Vec<String> = records.iter().map(ForeignRecord::line).collect();
        let arguments: Vec<&str> = [topic, end].into_iter().chain(lines.iter().map(String::as_str)).collect();
        self.ask("send", &arguments).await.map(drop)
    }

    /// Removes the records of a partition below an offset, as retention does.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn remove_below(&self, topic: &str, partition: i32, offset: i64) -> Result<(), ServiceError> {
        self.ask("remove", &[topic, &partition.to_string(), &offset.to_string()]).await.map(drop)
    }

    /// The committed positions of a group, by topic and partition, as others see them.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn committed(&self, group: &str) -> Result<BTreeMap<(String, i32), i64>, ServiceError> {
        let rows = self.ask("committed", &[group]).await?;
        let position = |row: &ConsoleRow| Some(((text(row.first()?)?, number(row, 1)?), number(row, 2)?));
        Ok(rows.iter().filter_map(position).collect())
    }

    /// The clients of a group, each with the number of partitions that the group gave it.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn members(&self, group: &str) -> Result<BTreeMap<String, usize>, ServiceError> {
        let rows = self.ask("members", &[group]).await?;
        Ok(rows.iter().filter_map(|row| Some((text(row.first()?)?, number(row, 1)?))).collect())
    }

    /// Moves the committed position of a group that has no members, as Kafka's own tool does; `None` deletes
    /// it.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn move_group(
        &self,
        group: &str,
        (topic, partition): (&str, i32),
        to: Option<i64>,
    ) -> Result<(), ServiceError> {
        let to = to.map_or_else(String::new, |to| to.to_string());
        self.ask("move", &[group, topic, &partition.to_string(), &to]).await.map(drop)
    }

    /// Puts all members out of a group. They learn it with their next heartbeat, and may join again.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn evict(&self, group: &str) -> Result<(), ServiceError> {
        self.ask("evict", &[group]).await.map(drop)
    }

    /// A member of a group by the Java client, with a strategy that is not ours. It stays until the cluster
    /// is dropped; this returns when it has a partition.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn join_group(&self, group: &str, topic: &str) -> Result<(), ServiceError> {
        self.ask("join", &[group, topic]).await.map(drop)
    }

    /// Gives somebody a right, effective at once.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn allow(&self, right: &Right) -> Result<(), ServiceError> {
        self.ask("allow", &right.arguments()).await.map(drop)
    }

    /// Takes a right away that [`allow`](Self::allow) gave.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn revoke(&self, right: &Right) -> Result<(), ServiceError> {
        self.ask("revoke", &right.arguments()).await.map(drop)
    }

    /// Gives a SCRAM user a password, for both mechanisms.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn set_password(&self, user: &str, password: &str) -> Result<(), ServiceError> {
        self.ask("scram", &[user, password]).await.map(drop)
    }

    async fn ask(&self, command: &str, arguments: &[&str]) -> Result<Vec<ConsoleRow>, ServiceError> {
        self.console.ask(&self.client(&[]), command, arguments).await
    }

    /// Properties of a Java client, in the form of a properties file.
    pub(crate) fn client(&self, more: &[(&str, &str)]) -> String {
        let mut lines = vec![
            format!("bootstrap.servers={}", self.bootstrap()),
            "reconnect.backoff.max.ms=500".to_owned(),
            "request.timeout.ms=10000".to_owned(),
            "default.api.timeout.ms=60000".to_owned(),
        ];
        lines.extend(more.iter().map(|(name, value)| format!("{name}={value}")));
        lines.join("\n")
    }
}

fn record(row: &ConsoleRow) -> Option<Record> {
    let headers =
        row.get(5..)?.chunks(2).map(|header| Some((text(header.first()?)?, header.get(1)?.clone())));
    Some(Record {
        partition: number(row, 0)?,
        offset: number(row, 1)?,
        timestamp_ms: number(row, 2)?,
        key: row.get(3)?.clone(),
        value: row.get(4)?.clone(),
        headers: headers.collect::<Option<_>>()?,
    })
}

fn partition(row: &ConsoleRow) -> Option<PartitionReplicas> {
    let in_sync = text(row.get(2)?)?;
    Some(PartitionReplicas {
        number: number(row, 0)?,
        leader: number::<i64>(row, 1)?.try_into().ok(),
        in_sync: in_sync.split(',').filter_map(|node| node.parse().ok()).collect(),
    })
}

fn number<T: std::str::FromStr>(row: &ConsoleRow, at: usize) -> Option<T> {
    text(row.get(at)?)?.parse().ok()
}

fn text(field: &Option<Vec<u8>>) -> Option<String> {
    String::from_utf8(field.clone()?).ok()
}

fn strange(row: &ConsoleRow) -> ServiceError {
    ServiceError::failed(SERVICE, format!("the console said {row:?}"))
}
