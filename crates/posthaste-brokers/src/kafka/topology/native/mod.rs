//! Requests that librdkafka has and rdkafka's safe API lacks: rights, SCRAM users, settings one by one.
//!
//! This is the one module with `unsafe`. The alternatives were refused. rdkafka's own `alter_configs` is the
//! old call, which resets every setting that it does not name. A second client of Kafka for three requests
//! would be a second set of TLS, login and timeouts; the one that was tried stored wrong rights.
//!
//! Why it is sound:
//!
//! - Every object of librdkafka is made in here, belongs to an [`Owned`], and is destroyed once, when that is
//!   dropped. No raw pointer leaves the module, and none outlives the closure it was made in.
//! - Texts go in as `CString`s that live longer than the call: librdkafka copies them. What comes out is
//!   copied into Rust's own types before the event that it belongs to is destroyed.
//! - The client outlives the call: the thread that calls holds an `Arc` of it.
//! - Enums that come from the wire are checked by librdkafka: what it does not know is its `UNKNOWN`. So no
//!   value arrives that the Rust enum lacks.
//!
//! A call submits its request to a queue of its own and waits for the one event of it, on a thread where
//! waiting is allowed. It ends by its time at the latest. Whoever drops the future does not end the call: the
//! thread does, and destroys what is its own.

#![allow(unsafe_code)]

mod copied;
mod owned;
mod words;

use crate::Secret;
use crate::kafka::client::admin::QuestionClient;
use copied::{copy, settings_of};
use owned::{ErrorWords, Owned, WORDS_MAX};
use rdkafka::bindings::*;
use rdkafka::types::RDKafkaErrorCode;
use std::ffi::{CStr, CString, NulError, c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;
use words::{MECHANISMS, name_of};

/// The client reports a request that was not answered in time by itself. This much later nobody waits any
/// more.
const GRACE: Duration = Duration::from_secs(2);

/// Why a request, or one part of it, failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NativeError {
    pub(super) code: RDKafkaErrorCode,
    pub(super) words: String,
}

impl NativeError {
    fn argument(words: impl Into<String>) -> Self {
        Self { code: RDKafkaErrorCode::InvalidArgument, words: words.into() }
    }
}

impl From<NulError> for NativeError {
    fn from(_: NulError) -> Self {
        Self::argument("a text holds a zero byte")
    }
}

/// A right, in Kafka's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AclEntry {
    pub(super) principal: String,
    pub(super) permission: String,
    pub(super) operation: String,
    pub(super) resource: String,
    pub(super) pattern: String,
    pub(super) on: String,
    pub(super) host: String,
}

/// What a broker says of a topic's settings.
#[derive(Debug, Clone)]
pub(super) struct TopicSettings {
    pub(super) topic: String,
    pub(super) found: Result<Vec<TopicSetting>, NativeError>,
}

/// One setting of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopicSetting {
    pub(super) name: String,
    pub(super) value: String,
    /// Whether somebody set it for this topic.
    pub(super) is_own: bool,
    pub(super) is_sensitive: bool,
}

/// How a password is kept, by the words of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Credential {
    pub(super) user: String,
    pub(super) mechanism: String,
    pub(super) iterations: i32,
}

/// A client for such requests.
#[derive(Clone)]
pub(super) struct NativeAdmin {
    client: Arc<QuestionClient>,
    within: Duration,
}

impl NativeAdmin {
    pub(super) fn new(client: Arc<QuestionClient>, within: Duration) -> Self {
        Self { client, within }
    }

    /// The settings of topics, as the broker answers. rdkafka's own call leaves out what is
    /// wrong with one of them: a topic that is not there has no settings, and no error.
    pub(super) async fn settings(&self, topics: Vec<String>) -> Result<Vec<TopicSettings>, NativeError> {
        self.run(move |call| {
            let asked = topics.iter().map(|topic| Owned::topic(topic, &[])).collect::<Result<Vec<_>, _>>()?;
            let mut raw: Vec<_> = asked.iter().map(Owned::get).collect();
            let event = call.ask(NativeRequest::DescribeConfigs, false, |client, options, queue| {
                // SAFETY: the resources belong to `asked`, which outlives the call.
                unsafe { rd_kafka_DescribeConfigs(client, raw.as_mut_ptr(), raw.len(), options, queue) }
            })?;
            // SAFETY: the event is of this request, and lives until the settings are copied.
            unsafe {
                let result = rd_kafka_event_DescribeConfigs_result(event.get());
                let answers = each(result, rd_kafka_DescribeConfigs_result_resources);
                Ok(answers.map(|answer| settings_of(answer)).collect())
            }
        })
        .await
    }

    /// All rights.
    pub(super) async fn rights(&self) -> Result<Vec<AclEntry>, NativeError> {
        self.run(|call| {
            let mut all = Owned::filter(None)?;
            let event = call.ask(NativeRequest::DescribeAcls, false, |client, options, queue| {
                // SAFETY: all four are alive until `ask` returns.
                unsafe { rd_kafka_DescribeAcls(client, all.as_mut(), options, queue) }
            })?;
            // SAFETY: the event is of this request, and lives until the rights are copied.
            unsafe {
                let result = rd_kafka_event_DescribeAcls_result(event.get());
                Ok(each(result, rd_kafka_DescribeAcls_result_acls).map(|right| copy(right)).collect())
            }
        })
        .await
    }

    /// Gives rights. Those that are there already are no error. One answer for each.
    pub(super) async fn allow(
        &self,
        rights: Vec<AclEntry>,
    ) -> Result<Vec<Result<(), NativeError>>, NativeError> {
        self.run(move |call| {
            let owned = rights.iter().map(Owned::right).collect::<Result<Vec<_>, _>>()?;
            let mut raw: Vec<_> = owned.iter().map(Owned::get).collect();
            let event = call.ask(NativeRequest::CreateAcls, false, |client, options, queue| {
                // SAFETY: the bindings belong to `owned`, which outlives the call.
                unsafe { rd_kafka_CreateAcls(client, raw.as_mut_ptr(), raw.len(), options, queue) }
            })?;
            // SAFETY: the event is of this request, and lives until the answers are copied.
            unsafe {
                let result = rd_kafka_event_CreateAcls_result(event.get());
                let answers = each(result, rd_kafka_CreateAcls_result_acls);
                Ok(answers.map(|answer| outcome(rd_kafka_acl_result_error(answer))).collect())
            }
        })
        .await
    }

    /// Takes exactly these rights away. Those that are not there are no error. One answer for each.
    pub(super) async fn revoke(
        &self,
        rights: Vec<AclEntry>,
    ) -> Result<Vec<Result<(), NativeError>>, NativeError> {
        self.run(move |call| {
            let filters =
                rights.iter().map(|right| Owned::filter(Some(right))).collect::<Result<Vec<_>, _>>()?;
            let mut raw: Vec<_> = filters.iter().map(Owned::get).collect();
            let event = call.ask(NativeRequest::DeleteAcls, false, |client, options, queue| {
                // SAFETY: the filters belong to `filters`, which outlives the call.
                unsafe { rd_kafka_DeleteAcls(client, raw.as_mut_ptr(), raw.len(), options, queue) }
            })?;
            // SAFETY: the event is of this request, and lives until the answers are copied.
            unsafe {
                let result = rd_kafka_event_DeleteAcls_result(event.get());
                let answers = each(result, rd_kafka_DeleteAcls_result_responses);
                Ok(answers.map(|answer| outcome(rd_kafka_DeleteAcls_result_response_error(answer))).collect())
            }
        })
        .await
    }

    /// Whether we may describe the cluster: its rights and its users. To be asked before either of them.
    /// Without that right librdkafka 2.12 drops the error of one answer, and frees what is not its own over
    /// the error of the other.
    pub(super) async fn may_describe_cluster(&self) -> Result<bool, NativeError> {
        self.run(|call| {
            let event = call.ask(NativeRequest::DescribeCluster, false, |client, options, queue| {
                // SAFETY: all three are alive until `ask` returns.
                unsafe { rd_kafka_DescribeCluster(client, options, queue) }
            })?;
            let mut operations = 0;
            // SAFETY: the event is of this request and alive; the operations themselves are not looked at.
            unsafe {
                let result = rd_kafka_event_DescribeCluster_result(event.get());
                if !result.is_null() {
                    rd_kafka_DescribeCluster_result_authorized_operations(result, &raw mut operations);
                }
            }
            // A broker tells them only to whoever may describe it, and that is one of them.
            Ok(operations > 0)
        })
        .await
    }

    /// The users with passwords: these, or all of them if there are none. One that is not there is left out.
    pub(super) async fn credentials(&self, users: Vec<String>) -> Result<Vec<Credential>, NativeError> {
        self.run(move |call| {
            let names =
                users.iter().map(|user| CString::new(user.as_str())).collect::<Result<Vec<_>, _>>()?;
            let mut raw: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
            let first = if raw.is_empty() { null_mut() } else { raw.as_mut_ptr() };
            let event = call.ask(NativeRequest::DescribeScram, false, |client, options, queue| {
                // SAFETY: the names outlive the call, and no name is a null pointer with a count of 0.
                unsafe {
                    rd_kafka_DescribeUserScramCredentials(client, first, raw.len(), options, queue);
                }
            })?;
            let mut found = Vec::new();
            // SAFETY: the event is of this request, and lives until the credentials are copied.
            unsafe {
                let result = rd_kafka_event_DescribeUserScramCredentials_result(event.get());
                for user in each(result, rd_kafka_DescribeUserScramCredentials_result_descriptions) {
                    match outcome(rd_kafka_UserScramCredentialsDescription_error(user)) {
                        Err(error) if error.code == RDKafkaErrorCode::ResourceNotFound => continue,
                        other => other?,
                    }
                    let count = rd_kafka_UserScramCredentialsDescription_scramcredentialinfo_count(user);
                    for at in 0..count {
                        let info = rd_kafka_UserScramCredentialsDescription_scramcredentialinfo(user, at);
                        found.push(Credential {
                            user: text(rd_kafka_UserScramCredentialsDescription_user(user)),
                            mechanism: name_of(&MECHANISMS, rd_kafka_ScramCredentialInfo_mechanism(info)),
                            iterations: rd_kafka_ScramCredentialInfo_iterations(info),
                        });
                    }
                }
            }
            Ok(found)
        })
        .await
    }

    /// Sets a user's password; without one, removes it.
    pub(super) async fn set_password(
        &self,
        credential: Credential,
        password: Option<Secret>,
    ) -> Result<(), NativeError> {
        self.run(move |call| {
            let alteration = Owned::alteration(&credential, password.as_ref())?;
            let mut raw = [alteration.get()];
            let event = call.ask(NativeRequest::AlterScram, false, |client, options, queue| {
                // SAFETY: the alteration belongs to `alteration`, which outlives the call.
                unsafe {
                    rd_kafka_AlterUserScramCredentials(client, raw.as_mut_ptr(), raw.len(), options, queue);
                }
            })?;
            // SAFETY: the event is of this request, and lives until the answers are copied.
            unsafe {
                let result = rd_kafka_event_AlterUserScramCredentials_result(event.get());
                for answer in each(result, rd_kafka_AlterUserScramCredentials_result_responses) {
                    match outcome(rd_kafka_AlterUserScramCredentials_result_response_error(answer)) {
                        Err(error)
                            if password.is_none() && error.code == RDKafkaErrorCode::ResourceNotFound => {}
                        other => other?,
                    }
                }
            }
            Ok(())
        })
        .await
    }

    /// Sets these settings of a topic, and removes those without a value. All others stay as they are.
    pub(super) async fn alter_topic(
        &self,
        topic: String,
        settings: Vec<(String, Option<String>)>,
        is_trial: bool,
    ) -> Result<(), NativeError> {
        self.run(move |call| {
            let resource = Owned::topic(&topic, &settings)?;
            let mut raw = [resource.get()];
            let event = call.ask(NativeRequest::AlterConfigs, is_trial, |client, options, queue| {
                // SAFETY: the resource belongs to `resource`, which outlives the call.
                unsafe {
                    rd_kafka_IncrementalAlterConfigs(client, raw.as_mut_ptr(), raw.len(), options, queue);
                }
            })?;
            // SAFETY: the event is of this request, and lives until the answers are copied.
            unsafe {
                let result = rd_kafka_event_IncrementalAlterConfigs_result(event.get());
                for answer in each(result, rd_kafka_IncrementalAlterConfigs_result_resources) {
                    let code = rd_kafka_ConfigResource_error(answer);
                    if code != rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                        let words = text(rd_kafka_ConfigResource_error_string(answer));
                        return Err(NativeError { code: code.into(), words });
                    }
                }
            }
            Ok(())
        })
        .await
    }

    /// Runs a call where waiting is allowed.
    async fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce(&NativeCall) -> Result<T, NativeError> + Send + 'static,
    ) -> Result<T, NativeError> {
        let call = NativeCall { client: Arc::clone(&self.client), within: self.within };
        let ran = tokio::task::spawn_blocking(move || act(&call)).await;
        ran.unwrap_or_else(|_| Err(NativeError::argument("the request's thread panicked")))
    }
}

/// What a request is, for its options.
#[derive(Debug, Clone, Copy)]
enum NativeRequest {
    DescribeAcls,
    CreateAcls,
    DeleteAcls,
    DescribeScram,
    AlterScram,
    AlterConfigs,
    DescribeConfigs,
    DescribeCluster,
}

impl NativeRequest {
    fn operation(self) -> rd_kafka_admin_op_t {
        match self {
            Self::DescribeAcls => rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBEACLS,
            Self::CreateAcls => rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_CREATEACLS,
            Self::DeleteAcls => rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DELETEACLS,
            Self::DescribeScram => rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBEUSERSCRAMCREDENTIALS,
            Self::AlterScram => rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_ALTERUSERSCRAMCREDENTIALS,
            Self::AlterConfigs => rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_INCREMENTALALTERCONFIGS,
            Self::DescribeConfigs => rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS,
            Self::DescribeCluster => rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECLUSTER,
        }
    }
}

/// One call, on its thread.
struct NativeCall {
    client: Arc<QuestionClient>,
    within: Duration,
}

impl NativeCall {
    /// Submits a request to a queue of its own, and waits for its one event.
    fn ask(
        &self,
        request: NativeRequest,
        is_trial: bool,
        submit: impl FnOnce(*mut rd_kafka_t, *const rd_kafka_AdminOptions_t, *mut rd_kafka_queue_t),
    ) -> Result<Owned<rd_kafka_event_t>, NativeError> {
        let client = self.client.admin().inner().native_ptr();
        let milliseconds = |time: Duration| c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the client is alive as long as `self.client`. Options and queue are destroyed by their
        // owners after the event was taken; librdkafka keeps references of its own for what is under way.
        unsafe {
            let options = Owned::new(
                rd_kafka_AdminOptions_new(client, request.operation()),
                rd_kafka_AdminOptions_destroy,
            );
            let mut options = options?;
            let mut words = ErrorWords::new();
            let set = rd_kafka_AdminOptions_set_request_timeout(
                options.as_mut(),
                milliseconds(self.within),
                words.as_mut_ptr(),
                WORDS_MAX,
            );
            words.check(set)?;
            if is_trial {
                let set = rd_kafka_AdminOptions_set_validate_only(
                    options.as_mut(),
                    1,
                    words.as_mut_ptr(),
                    WORDS_MAX,
                );
                words.check(set)?;
            }
            if matches!(request, NativeRequest::DescribeCluster) {
                let error = rd_kafka_AdminOptions_set_include_authorized_operations(options.as_mut(), 1);
                if let Ok(error) = Owned::new(error, rd_kafka_error_destroy) {
                    outcome(error.get())?;
                }
            }
            let queue = Owned::new(rd_kafka_queue_new(client), rd_kafka_queue_destroy)?;
            submit(client, options.get(), queue.get());
            let event = rd_kafka_queue_poll(queue.get(), milliseconds(self.within + GRACE));
            let no_answer = |_| NativeError {
                code: RDKafkaErrorCode::OperationTimedOut,
                words: "no answer in time".to_owned(),
            };
            let event = Owned::new(event, rd_kafka_event_destroy).map_err(no_answer)?;
            let code = rd_kafka_event_error(event.get());
            if code == rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Ok(event);
            }
            Err(NativeError { code: code.into(), words: text(rd_kafka_event_error_string(event.get())) })
        }
    }
}

/// A text of librdkafka, copied.
///
/// # Safety
///
/// It is null, or ends with a zero and is alive.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the contract above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The members of a list that a result holds.
///
/// # Safety
///
/// The result is null, or alive until the last member was used.
unsafe fn each<R, M>(
    result: *const R,
    list: unsafe extern "C" fn(*const R, *mut usize) -> *mut *const M,
) -> impl Iterator<Item = *const M> {
    let mut count = 0;
    let first = if result.is_null() {
        null_mut()
    } else {
        // SAFETY: the result is alive.
        unsafe { list(result, &raw mut count) }
    };
    let count = if first.is_null() { 0 } else { count };
    // SAFETY: the list has that many members, and is alive with its result.
    (0..count).map(move |at| unsafe { *first.add(at) })
}

/// What an error says; null says nothing.
///
/// # Safety
///
/// The error is null or alive.
unsafe fn outcome(error: *const rd_kafka_error_t) -> Result<(), NativeError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: by the contract above.
    let (code, words) = unsafe { (rd_kafka_error_code(error), text(rd_kafka_error_string(error))) };
    match code {
        rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(NativeError { code: code.into(), words }),
    }
}
