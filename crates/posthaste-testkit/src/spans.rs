//! Spans of handlers, for whoever wants to know inside which one it runs.

use posthaste::telemetry::HANDLER_TARGET;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of a span, as text.
pub type SpanFields = BTreeMap<&'static str, String>;

static SPANS: Mutex<Vec<SpanFields>> = Mutex::new(Vec::new());

thread_local! {
    /// Those that this thread is inside of, the innermost last.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn spans() -> MutexGuard<'static, Vec<SpanFields>> {
    SPANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens from now on, on all threads of the process.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Whoever listens already is not replaced; a test then hears nothing, and says so.
        let _ = tracing::subscriber::set_global_default(Listener);
    });
}

/// The fields of the span that this code runs in, with those of the spans around it.
#[must_use]
pub fn current() -> SpanFields {
    let spans = spans();
    let entered = ENTERED.with_borrow(Clone::clone);
    let fields = entered.into_iter().filter_map(|id| spans.get(usize::try_from(id - 1).ok()?));
    fields.flatten().map(|(name, value)| (*name, value.clone())).collect()
}

/// Every span that there was since [`listen`], also of code that cannot ask.
#[must_use]
pub fn all() -> Vec<SpanFields> {
    spans().clone()
}

struct Listener;

struct Writing<'a>(&'a mut SpanFields);

impl Visit for Writing<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == HANDLER_TARGET
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = SpanFields::from([("span", attributes.metadata().name().to_owned())]);
        attributes.record(&mut Writing(&mut fields));
        let mut spans = spans();
        spans.push(fields);
        Id::from_u64(spans.len() as u64)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        let place = usize::try_from(span.into_u64() - 1).unwrap_or(usize::MAX);
        if let Some(fields) = spans().get_mut(place) {
            values.record(&mut Writing(fields));
        }
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }
    fn exit(&self, span: &Id) {
        let id = span.into_u64();
        ENTERED.with_borrow_mut(|entered| {
            if let Some(place) = entered.iter().rposition(|entered| *entered == id) {
                entered.remove(place);
            }
        });
    }
}
