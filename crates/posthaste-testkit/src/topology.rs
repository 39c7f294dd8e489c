//! How a Kafka cluster is set up, by the word of its own Java client: the witness of tests that change it.

use crate::services::{Kafka, ServiceError};
use std::collections::{BTreeMap, BTreeSet};

impl Kafka {
    /// All rights, each as `principal host operation permission type name pattern`.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn rights(&self) -> Result<BTreeSet<String>, ServiceError> {
        Ok(self
            .console
            .ask(&self.client(&[]), "rights", &[])
            .await?
            .iter()
            .map(|row| words(row).join(" "))
            .collect())
    }

    /// The settings of a topic that somebody has set.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn settings_of(&self, topic: &str) -> Result<BTreeMap<String, String>, ServiceError> {
        let rows = self.console.ask(&self.client(&[]), "settings", &[topic]).await?;
        let pair = |row: &[Option<Vec<u8>>]| match words(row).as_slice() {
            [name, value] => Some((name.clone(), value.clone())),
            _ => None,
        };
        Ok(rows.iter().filter_map(|row| pair(row)).collect())
    }

    /// The users with passwords, each as `name mechanism iterations`.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn users(&self) -> Result<BTreeSet<String>, ServiceError> {
        Ok(self
            .console
            .ask(&self.client(&[]), "users", &[])
            .await?
            .iter()
            .map(|row| words(row).join(" "))
            .collect())
    }

    /// All topics but the cluster's own.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn topics(&self) -> Result<BTreeSet<String>, ServiceError> {
        Ok(self
            .console
            .ask(&self.client(&[]), "topics", &[])
            .await?
            .iter()
            .map(|row| words(row).join(" "))
            .collect())
    }

    /// The node that decides for the cluster now.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said.
    pub async fn controller(&self) -> Result<u32, ServiceError> {
        let rows = self.console.ask(&self.client(&[]), "controller", &[]).await?;
        let node = rows.first().and_then(|row| words(row).first()?.parse().ok());
        node.ok_or_else(|| ServiceError::failed("kafka", "it has no controller"))
    }

    /// Reads a topic as a member of a group, with these properties of the Java client.
    ///
    /// # Errors
    ///
    /// `Failed` with what Kafka said: the right that is missing.
    pub async fn fetch_as(
        &self,
        client: &[(&str, &str)],
        group: &str,
        topic: &str,
    ) -> Result<(), ServiceError> {
        self.console.ask(&self.client(client), "fetch", &[group, topic]).await.map(drop)
    }
}

fn words(row: &[Option<Vec<u8>>]) -> Vec<String> {
    row.iter()
        .map(|field| field.as_deref().map_or_else(String::new, |text| String::from_utf8_lossy(text).into()))
        .collect()
}
