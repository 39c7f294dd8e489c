//! Sessions of a page: random texts in the memory of this process, without a cookie.
//!
//! A cookie on localhost would be sent to whatever else serves another port there. A session is held by the
//! page and sent as `Authorization`. It ends after eight hours without a request, after a day in all, and
//! with its token: each request asks whether that one is still there.

use crate::access::{Grant, Tokens};
use crate::http::token::{TokenHash, id_of, mint};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What sessions begin with.
const PREFIX: &str = "phs";
/// What one-time codes begin with.
const CODE: &str = "phc";
/// Sessions at once; the one that was silent for the longest goes.
const SESSIONS_MAX: usize = 1_000;
/// Of one token, likewise: nobody shows the others out.
const SESSIONS_OF_ONE_MAX: usize = 20;
/// Without a request.
const IDLE: Duration = Duration::from_secs(8 * 3600);
/// In all.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// Of a one-time code.
const CODE_LIFE: Duration = Duration::from_secs(300);

struct Session {
    hash: TokenHash,
    begun: Instant,
    seen: Instant,
    of: Holder,
}

enum Holder {
    /// Ends with this token.
    Token(TokenHash),
    /// Came with a one-time code.
    Terminal(Arc<Grant>),
}

/// All sessions.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<OpenSessions>);

#[derive(Default)]
struct OpenSessions {
    sessions: HashMap<String, Session>,
    code: Option<(TokenHash, Instant)>,
}

impl Holder {
    /// Whether both hold the same.
    fn is_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Token(one), Self::Token(two)) => one.is(two),
            (Self::Terminal(one), Self::Terminal(two)) => one.hash.is(&two.hash),
            _ => false,
        }
    }
}

impl OpenSessions {
    /// Of these so many at most, with one more.
    fn make_room(&mut self, most: usize, of: impl Fn(&Session) -> bool) {
        let these = || self.sessions.iter().filter(|(_, session)| of(session));
        if these().count() >= most {
            let oldest = these().min_by_key(|(_, session)| session.seen).map(|(id, _)| id.clone());
            oldest.and_then(|id| self.sessions.remove(&id));
        }
    }
}

impl Sessions {
    fn inner(&self) -> std::sync::MutexGuard<'_, OpenSessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A code that opens one session, once.
    pub(crate) fn one_time_code(&self) -> anyhow::Result<String> {
        let (_, code) = mint(CODE)?;
        self.inner().code = Some((TokenHash::of(&code), Instant::now()));
        Ok(code)
    }

    /// Begins one for the holder of a token.
    pub(crate) fn begin(&self, grant: &Grant) -> anyhow::Result<String> {
        self.enter(Holder::Token(grant.hash))
    }

    /// Begins one for a code, which is used up by it.
    pub(crate) fn begin_with_code(&self, code: &str) -> anyhow::Result<Option<String>> {
        let hash = TokenHash::of(code);
        let is_it = |(known, made): &(TokenHash, Instant)| known.is(&hash) && made.elapsed() < CODE_LIFE;
        if self.inner().code.take_if(|code| is_it(code)).is_none() {
            return Ok(None);
        }
        self.enter(Holder::Terminal(Arc::new(Grant::of_terminal(hash)))).map(Some)
    }

    fn enter(&self, of: Holder) -> anyhow::Result<String> {
        let (id, text) = mint(PREFIX)?;
        let now = Instant::now();
        let mut inner = self.inner();
        inner.make_room(SESSIONS_OF_ONE_MAX, |session| session.of.is_of(&of));
        inner.make_room(SESSIONS_MAX, |_| true);
        inner.sessions.insert(id, Session { hash: TokenHash::of(&text), begun: now, seen: now, of });
        Ok(text)
    }

    /// What a session gives to a request.
    pub(crate) fn find(&self, text: &str, tokens: &Tokens) -> Option<Arc<Grant>> {
        let grant = self.peek(text, tokens)?;
        let mut inner = self.inner();
        if let Some(session) = id_of(PREFIX, text).and_then(|id| inner.sessions.get_mut(id)) {
            session.seen = Instant::now();
        }
        Some(grant)
    }

    /// The same for a stream that is open: a page that nobody touches is idle.
    pub(crate) fn peek(&self, text: &str, tokens: &Tokens) -> Option<Arc<Grant>> {
        let id = id_of(PREFIX, text)?;
        let mut inner = self.inner();
        let session = inner.sessions.get(id).filter(|session| session.hash.is(&TokenHash::of(text)))?;
        let is_over = session.seen.elapsed() > IDLE || session.begun.elapsed() > LIFE;
        let grant = match &session.of {
            Holder::Token(hash) => tokens.find_hash(hash),
            Holder::Terminal(grant) => Some(Arc::clone(grant)),
        };
        if is_over || grant.is_none() {
            inner.sessions.remove(id);
            return None;
        }
        grant
    }

    /// Ends one.
    pub(crate) fn end(&self, text: &str) {
        if let Some(id) = id_of(PREFIX, text) {
            let mut inner = self.inner();
            if inner.sessions.get(id).is_some_and(|session| session.hash.is(&TokenHash::of(text))) {
                inner.sessions.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_opens_one_session_and_a_session_ends() {
        let (sessions, tokens) = (Sessions::default(), Tokens::open(None).expect("none"));
        let code = sessions.one_time_code().expect("random numbers");
        assert!(sessions.begin_with_code("phc_x").expect("asked").is_none());
        let text = sessions.begin_with_code(&code).expect("asked").expect("it is the code");
        assert!(sessions.begin_with_code(&code).expect("asked").is_none(), "it is used up");
        assert!(sessions.find(&text, &tokens).is_some() && sessions.find(&code, &tokens).is_none());
        sessions.end(&text);
        assert!(sessions.find(&text, &tokens).is_none());
    }

    #[test]
    fn there_are_a_thousand_at_most_and_none_outlives_its_token() {
        let (sessions, tokens) = (Sessions::default(), Tokens::open(None).expect("none"));
        let of = |n: usize| Grant::of_terminal(TokenHash::of(&format!("gone-{n}")));
        let first = sessions.begin(&of(0)).expect("random numbers");
        for n in 1..=SESSIONS_MAX {
            sessions.begin(&of(n)).expect("random numbers");
        }
        assert_eq!(sessions.inner().sessions.len(), SESSIONS_MAX);
        assert!(!sessions.inner().sessions.contains_key(id_of(PREFIX, &first).expect("an id")));
        for _ in 0..2 * SESSIONS_OF_ONE_MAX {
            sessions.begin(&of(SESSIONS_MAX)).expect("random numbers");
        }
        let mine = |session: &Session| session.of.is_of(&Holder::Token(of(SESSIONS_MAX).hash));
        assert_eq!(sessions.inner().sessions.values().filter(|one| mine(one)).count(), SESSIONS_OF_ONE_MAX);
        let last = sessions.begin(&of(0)).expect("random numbers");
        assert!(sessions.find(&last, &tokens).is_none(), "its token is in no file");
    }
}
