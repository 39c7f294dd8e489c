//! The columns that a layout may name beside its key, topic, payload and status. They stand in one table,
//! from which everything else is made. A role's name is its field and its key in `[outbox.adopt]`. None of
//! them is required.

/// What a column must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// Anything that has a text.
    Any,
    /// Text of any length.
    Text,
    /// A whole number.
    Number,
    /// A timestamp.
    Time,
    /// JSON, as text too.
    Json,
    /// What a broker can carry.
    Payload,
}

impl ColumnKind {
    /// Whether a type, as the catalog prints it, is one of these.
    #[must_use]
    pub fn fits(self, kind: &str) -> bool {
        let text = kind == "text" || kind.starts_with("character");
        match self {
            Self::Any => true,
            Self::Text => text,
            Self::Number => matches!(kind, "smallint" | "integer" | "bigint"),
            Self::Time => kind.starts_with("timestamp"),
            Self::Json => text || matches!(kind, "json" | "jsonb"),
            Self::Payload => text || matches!(kind, "json" | "jsonb" | "bytea"),
        }
    }

    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Any => "any type",
            Self::Text => "text",
            Self::Number => "a whole number",
            Self::Time => "a timestamp, with or without time zone",
            Self::Json => "json, jsonb or text",
            Self::Payload => "json, jsonb, text or bytea",
        }
    }
}

/// Whether we write a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only its owners write it.
    Read,
    /// We write it when a row is claimed or settled.
    Written,
}

/// What a column can be for.
#[derive(Debug, Clone, Copy)]
pub struct Role {
    /// Its name.
    pub name: &'static str,
    /// What its column must be.
    pub kind: ColumnKind,
    /// Whether we write it.
    pub access: Access,
    /// How such columns are usually called: in lower case, without underscores.
    pub usual: &'static [&'static str],
}

macro_rules! roles {
    ($($(#[$about:meta])* $name:ident: $kind:ident, $access:ident, [$($usual:literal),*];)+) => {
        /// Which column has which role.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Columns { $($(#[$about])* pub $name: Option<String>,)+ }

        impl Columns {
            /// Every role, in the order of the table below.
            pub const ROLES: &[Role] = &[$(Role {
                name: stringify!($name), kind: ColumnKind::$kind, access: Access::$access, usual: &[$($usual),*],
            }),+];

            /// Every role with its column.
            pub fn roles(&self) -> impl Iterator<Item = (&'static Role, Option<&str>)> {
                Self::ROLES.iter().zip([$(self.$name.as_deref()),+])
            }

            /// The same, to name others.
            pub fn roles_mut(&mut self) -> impl Iterator<Item = (&'static Role, &mut Option<String>)> {
                Self::ROLES.iter().zip([$(&mut self.$name),+])
            }
        }
    };
}

roles! {
    /// The unit of order, and the broker's partition.
    key: Any, Read, ["key", "partitionkey", "messagekey", "recordkey", "eventkey", "kafkakey", "aggregateid"];
    /// An object of strings.
    headers: Json, Read, ["headers", "metadata"];
    /// Attempts spent.
    attempts: Number, Written, ["retrycount", "retries", "attempts", "attemptcount", "failurecount", "timesattempted", "tries"];
    /// The row is not claimed before this time.
    next_attempt_at: Time, Written, ["nextattemptat", "nextretryat", "nextattempttime", "availableat", "scheduledat", "retryat"];
    /// The last error, in words.
    last_error: Text, Written, ["lasterror", "errormessage", "failurereason", "error"];
    /// When that error happened.
    last_error_at: Time, Written, ["lasterrorat", "failedat"];
    /// `transient`, `permanent` or `unknown`.
    error_class: Text, Written, ["errorclass"];
    /// Since when a relay has the row in hand; empty otherwise.
    claimed_at: Time, Written, ["lockedat", "claimedat"];
    /// Which relay has the row in hand; empty otherwise.
    claimed_by: Text, Written, ["lockedby", "claimedby"];
    /// When a relay took the row in hand last. It stays when the row is settled.
    last_attempt_at: Time, Written, ["lastattemptat", "lastattempttime"];
    /// When it was published.
    published_at: Time, Written, ["publishedat", "processedat", "sentat", "deliveredat", "dispatchedat", "completedat", "processedonutc"];
    /// When the row was written. Latency and ages are counted from it.
    created_at: Time, Read, ["createdat", "occurredat", "insertedat", "createdon", "occurredonutc", "created"];
    /// Set at each of our writes.
    updated_at: Time, Written, ["updatedat"];
    /// The author's own idempotency key; it travels as the header `idempotency-key`.
    idempotency_key: Any, Read, [];
}
