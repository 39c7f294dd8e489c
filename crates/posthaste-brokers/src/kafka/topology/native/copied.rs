//! What comes out of librdkafka, copied into Rust's own types.

use super::words::{OPERATIONS, PATTERNS, PERMISSIONS, RESOURCES, name_of};
use super::{AclEntry, NativeError, TopicSetting, TopicSettings, each, text};
use rdkafka::bindings::*;

/// A right, copied.
///
/// # Safety
///
/// It is alive.
pub(super) unsafe fn copy(right: *const rd_kafka_AclBinding_t) -> AclEntry {
    // SAFETY: by the contract above; the texts belong to it.
    unsafe {
        AclEntry {
            principal: text(rd_kafka_AclBinding_principal(right)),
            permission: name_of(&PERMISSIONS, rd_kafka_AclBinding_permission_type(right)),
            operation: name_of(&OPERATIONS, rd_kafka_AclBinding_operation(right)),
            resource: name_of(&RESOURCES, rd_kafka_AclBinding_restype(right)),
            pattern: name_of(&PATTERNS, rd_kafka_AclBinding_resource_pattern_type(right)),
            on: text(rd_kafka_AclBinding_name(right)),
            host: text(rd_kafka_AclBinding_host(right)),
        }
    }
}

/// The settings of a topic, copied.
///
/// # Safety
///
/// It is alive.
pub(super) unsafe fn settings_of(resource: *const rd_kafka_ConfigResource_t) -> TopicSettings {
    // SAFETY: by the contract above; names, values and entries belong to it.
    unsafe {
        let topic = text(rd_kafka_ConfigResource_name(resource));
        let code = rd_kafka_ConfigResource_error(resource);
        if code != rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            let words = text(rd_kafka_ConfigResource_error_string(resource));
            return TopicSettings { topic, found: Err(NativeError { code: code.into(), words }) };
        }
        let entries = each(resource, rd_kafka_ConfigResource_configs);
        let found = entries.map(|entry| TopicSetting {
            name: text(rd_kafka_ConfigEntry_name(entry)),
            value: text(rd_kafka_ConfigEntry_value(entry)),
            is_own: rd_kafka_ConfigEntry_source(entry)
                == rd_kafka_ConfigSource_t::RD_KAFKA_CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG,
            is_sensitive: rd_kafka_ConfigEntry_is_sensitive(entry) != 0,
        });
        TopicSettings { topic, found: Ok(found.collect()) }
    }
}
