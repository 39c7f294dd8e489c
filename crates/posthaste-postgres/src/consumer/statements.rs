//! All statements of an inbox, made once at its start.
//!
//! Which table has the marks is decided here and nowhere else: our own, or one that is mapped.

use crate::mapped::Mapped;
use crate::session::Sessions;

macro_rules! statements {
    ($($name:ident)*) => {
        /// A statement for each file of `sql/consumer/`, which says what it is for.
        pub(super) struct Statements {
            $(pub(super) $name: String,)*
        }

        impl Statements {
            pub(super) fn of(mapped: Option<&Mapped>, sessions: &Sessions) -> Self {
                let made = |text| {
                    let text = sessions.sql(text);
                    mapped.map_or_else(|| text.clone(), |mapped| mapped.fill(&text))
                };
                Self {
                    $($name: made(include_str!(concat!("../../sql/consumer/", stringify!($name), ".sql"))),)*
                }
            }
        }
    };
}

statements! {
    admit look unmark mark
    lock held defer bury former_letter
    letter replay promote drop_letter
    due run charge done again died next_due claim claimed lock_all
    make take_lock take save_lock save report controls
    purge_marks purge_letters holding_letters count forget_processes
}
