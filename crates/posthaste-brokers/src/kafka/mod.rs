//! Apache Kafka.
