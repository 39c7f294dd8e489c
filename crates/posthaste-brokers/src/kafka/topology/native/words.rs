//! Kafka's own words for what librdkafka numbers.

use super::NativeError;
use rdkafka::bindings::*;

/// What this client does not know.
pub(super) const UNKNOWN: &str = "UNKNOWN";

pub(super) fn name_of<E: PartialEq>(names: &[(&'static str, E)], value: E) -> String {
    let found = names.iter().find(|(_, known)| *known == value);
    found.map_or(UNKNOWN, |(name, _)| *name).to_owned()
}

pub(super) fn value_of<E: Copy>(names: &[(&'static str, E)], name: &str) -> Result<E, NativeError> {
    let found = names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    found.ok_or_else(|| NativeError::argument(format!("`{name}` is not known to this client")))
}

pub(super) const PERMISSIONS: [(&str, rd_kafka_AclPermissionType_t); 2] = [
    ("ALLOW", rd_kafka_AclPermissionType_t::RD_KAFKA_ACL_PERMISSION_TYPE_ALLOW),
    ("DENY", rd_kafka_AclPermissionType_t::RD_KAFKA_ACL_PERMISSION_TYPE_DENY),
];
/// librdkafka calls the cluster a broker.
pub(super) const RESOURCES: [(&str, rd_kafka_ResourceType_t); 4] = [
    ("TOPIC", rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC),
    ("GROUP", rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_GROUP),
    ("CLUSTER", rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_BROKER),
    ("TRANSACTIONAL_ID", rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TRANSACTIONAL_ID),
];
pub(super) const PATTERNS: [(&str, rd_kafka_ResourcePatternType_t); 2] = [
    ("LITERAL", rd_kafka_ResourcePatternType_t::RD_KAFKA_RESOURCE_PATTERN_LITERAL),
    ("PREFIXED", rd_kafka_ResourcePatternType_t::RD_KAFKA_RESOURCE_PATTERN_PREFIXED),
];
pub(super) const OPERATIONS: [(&str, rd_kafka_AclOperation_t); 11] = [
    ("ALL", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_ALL),
    ("READ", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_READ),
    ("WRITE", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE),
    ("CREATE", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_CREATE),
    ("DELETE", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_DELETE),
    ("ALTER", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_ALTER),
    ("DESCRIBE", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_DESCRIBE),
    ("CLUSTER_ACTION", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_CLUSTER_ACTION),
    ("DESCRIBE_CONFIGS", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS),
    ("ALTER_CONFIGS", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_ALTER_CONFIGS),
    ("IDEMPOTENT_WRITE", rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_IDEMPOTENT_WRITE),
];

pub(super) fn permission(name: &str) -> Result<rd_kafka_AclPermissionType_t, NativeError> {
    value_of(&PERMISSIONS, name)
}

pub(super) fn resource_type(name: &str) -> Result<rd_kafka_ResourceType_t, NativeError> {
    value_of(&RESOURCES, name)
}

pub(super) fn pattern_type(name: &str) -> Result<rd_kafka_ResourcePatternType_t, NativeError> {
    value_of(&PATTERNS, name)
}

pub(super) fn operation(name: &str) -> Result<rd_kafka_AclOperation_t, NativeError> {
    value_of(&OPERATIONS, name)
}

pub(super) const MECHANISMS: [(&str, rd_kafka_ScramMechanism_t); 2] = [
    ("scram-sha-256", rd_kafka_ScramMechanism_t::RD_KAFKA_SCRAM_MECHANISM_SHA_256),
    ("scram-sha-512", rd_kafka_ScramMechanism_t::RD_KAFKA_SCRAM_MECHANISM_SHA_512),
];

pub(super) fn mechanism(name: &str) -> Result<rd_kafka_ScramMechanism_t, NativeError> {
    value_of(&MECHANISMS, name)
}
