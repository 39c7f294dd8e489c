//! Objects of librdkafka that belong to somebody here, and texts that go in.

use super::words::{mechanism, operation, pattern_type, permission, resource_type};
use super::{AclEntry, Credential, NativeError, outcome, text};
use crate::Secret;
use rdkafka::bindings::*;
use std::ffi::{CString, c_char};
use std::ptr::{NonNull, null};

/// Bytes for librdkafka's own words about a wrong argument.
pub(super) const WORDS_MAX: usize = 512;

/// An object of librdkafka that is ours, and how it is destroyed.
pub(super) struct Owned<T> {
    object: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// # Safety
    ///
    /// The object is ours or null, and `destroy` is the function for it.
    pub(super) unsafe fn new(
        object: *mut T,
        destroy: unsafe extern "C" fn(*mut T),
    ) -> Result<Self, NativeError> {
        let object = NonNull::new(object).ok_or_else(|| NativeError::argument("librdkafka made nothing"))?;
        Ok(Self { object, destroy })
    }

    pub(super) fn get(&self) -> *mut T {
        self.object.as_ptr()
    }

    pub(super) fn as_mut(&mut self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: by the contract of `new`, and nobody else has destroyed it.
        unsafe { (self.destroy)(self.object.as_ptr()) }
    }
}

impl Owned<rd_kafka_AclBinding_t> {
    /// A right.
    pub(super) fn right(right: &AclEntry) -> Result<Self, NativeError> {
        let (on, principal) = (CString::new(right.on.as_str())?, CString::new(right.principal.as_str())?);
        let host = CString::new(right.host.as_str())?;
        let mut words = ErrorWords::new();
        // SAFETY: the texts live until the call returns, which copies them.
        let made = unsafe {
            let object = rd_kafka_AclBinding_new(
                resource_type(&right.resource)?,
                on.as_ptr(),
                pattern_type(&right.pattern)?,
                principal.as_ptr(),
                host.as_ptr(),
                operation(&right.operation)?,
                permission(&right.permission)?,
                words.as_mut_ptr(),
                WORDS_MAX,
            );
            Self::new(object, rd_kafka_AclBinding_destroy)
        };
        made.map_err(|_| NativeError::argument(words.text()))
    }

    /// A filter for exactly this right, or for all of them.
    pub(super) fn filter(right: Option<&AclEntry>) -> Result<Self, NativeError> {
        if let Some(right) = right {
            // A binding with all of its parts said is the filter for itself, and the same type.
            return Self::right(right);
        }
        let mut words = ErrorWords::new();
        // SAFETY: null stands for any name, principal and host.
        let made = unsafe {
            let object = rd_kafka_AclBindingFilter_new(
                rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_ANY,
                null(),
                rd_kafka_ResourcePatternType_t::RD_KAFKA_RESOURCE_PATTERN_ANY,
                null(),
                null(),
                rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_ANY,
                rd_kafka_AclPermissionType_t::RD_KAFKA_ACL_PERMISSION_TYPE_ANY,
                words.as_mut_ptr(),
                WORDS_MAX,
            );
            Self::new(object, rd_kafka_AclBinding_destroy)
        };
        made.map_err(|_| NativeError::argument(words.text()))
    }
}

impl Owned<rd_kafka_UserScramCredentialAlteration_t> {
    /// A password that is set, or, without one, removed.
    pub(super) fn alteration(
        credential: &Credential,
        password: Option<&Secret>,
    ) -> Result<Self, NativeError> {
        let user = CString::new(credential.user.as_str())?;
        let mechanism = mechanism(&credential.mechanism)?;
        // SAFETY: name and password live until the call returns, which copies them. Without a salt
        // librdkafka makes one by chance.
        unsafe {
            let object = match password.map(Secret::expose) {
                Some(password) => rd_kafka_UserScramCredentialUpsertion_new(
                    user.as_ptr(),
                    mechanism,
                    credential.iterations,
                    password.as_ptr(),
                    password.len(),
                    null(),
                    0,
                ),
                None => rd_kafka_UserScramCredentialDeletion_new(user.as_ptr(), mechanism),
            };
            Self::new(object, rd_kafka_UserScramCredentialAlteration_destroy)
        }
    }
}

impl Owned<rd_kafka_ConfigResource_t> {
    /// A topic with settings that change.
    pub(super) fn topic(topic: &str, settings: &[(String, Option<String>)]) -> Result<Self, NativeError> {
        use rd_kafka_AlterConfigOpType_t::{
            RD_KAFKA_ALTER_CONFIG_OP_TYPE_DELETE as DELETE, RD_KAFKA_ALTER_CONFIG_OP_TYPE_SET as SET,
        };
        let name = CString::new(topic)?;
        // SAFETY: every text lives until the call that takes it returns, which copies it.
        unsafe {
            let object =
                rd_kafka_ConfigResource_new(rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC, name.as_ptr());
            let mut resource = Self::new(object, rd_kafka_ConfigResource_destroy)?;
            for (setting, value) in settings {
                let setting = CString::new(setting.as_str())?;
                let value = value.as_deref().map(CString::new).transpose()?;
                let (act, value) = match &value {
                    Some(value) => (SET, value.as_ptr()),
                    None => (DELETE, null()),
                };
                let error = rd_kafka_ConfigResource_add_incremental_config(
                    resource.as_mut(),
                    setting.as_ptr(),
                    act,
                    value,
                );
                if let Ok(error) = Owned::new(error, rd_kafka_error_destroy) {
                    outcome(error.get())?;
                }
            }
            Ok(resource)
        }
    }
}

/// Room for librdkafka's words about a wrong argument.
pub(super) struct ErrorWords([c_char; WORDS_MAX]);

impl ErrorWords {
    pub(super) fn new() -> Self {
        Self([0; WORDS_MAX])
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr()
    }

    fn text(&self) -> String {
        // SAFETY: it began as zeros, and librdkafka ends what it writes with one.
        unsafe { text(self.0.as_ptr()) }
    }

    pub(super) fn check(&self, code: rd_kafka_resp_err_t) -> Result<(), NativeError> {
        match code {
            rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
            code => Err(NativeError { code: code.into(), words: self.text() }),
        }
    }
}
