//! Stable codes of errors. A program goes by the code; the words around it may change.
//!
//! The codes of a seam are one enum, so that nobody can make one up where an error is built. `docs/errors.md`
//! lists all of them, and a test here compares the two.

/// Makes the enum of a seam's codes: variant = `"seam.words"`.
macro_rules! codes {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $variant:ident = $code:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name { $($(#[$meaning])* $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// As it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }
        }
    };
}

pub(crate) use codes;

#[cfg(test)]
mod tests {
    use crate::admin::AdminCode;
    use crate::store::StoreCode;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_is_documented_and_every_documented_code_is_given() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        let text = std::fs::read_to_string(path).expect("the page");
        let (_, section) = text.split_once("\n## Codes of errors\n").expect("the section");
        let section = section.split("\n## ").next().expect("its text");
        let documented: BTreeSet<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(code, _)| code))
            .filter(|code| !code.starts_with("config."))
            .collect();
        let admin = AdminCode::ALL.iter().map(|code| code.as_str());
        let given: BTreeSet<&str> = admin.chain(StoreCode::ALL.iter().map(|code| code.as_str())).collect();
        assert_eq!(given.len(), AdminCode::ALL.len() + StoreCode::ALL.len(), "each once");
        assert_eq!(given, documented);
        // The `type` of an answer of the API leads there.
        for code in given {
            assert!(section.contains(&format!("| `{code}`<a id=\"{code}\"></a> |")), "{code} has no anchor");
        }
    }

    /// The codes of consumers are written where they arise, in three crates. Each stands in the page.
    #[test]
    fn every_code_of_a_consumer_is_documented() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let page = std::fs::read_to_string(format!("{root}/../docs/errors.md")).expect("the page");
        let (_, section) = page.split_once("\n## Codes of consumers\n").expect("the section");
        let section = section.split("\n## ").next().expect("its text");
        let mut found = BTreeSet::new();
        for room in [
            "posthaste/src/consumer",
            "posthaste/src/inbox",
            "posthaste-postgres/src/consumer",
            "posthaste-postgres/src/handler",
            "posthaste-sqlite/src/consumer",
        ] {
            for file in std::fs::read_dir(format!("{root}/{room}")).expect("a room") {
                let text = std::fs::read_to_string(file.expect("a file").path()).unwrap_or_default();
                let quoted = text.split('"').skip(1).step_by(2).map(str::to_owned);
                found.extend(quoted.filter(|text| is_code(text)));
            }
        }
        assert!(found.len() > 15, "{found:?}");
        let missing: Vec<_> = found.iter().filter(|code| !section.contains(&format!("`{code}`"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    fn is_code(text: &str) -> bool {
        let family = ["consumer.", "handler.", "message.", "inbox.", "database."];
        family.iter().any(|family| text.starts_with(family))
            && text.chars().all(|c| c.is_ascii_lowercase() || c == '.' || c == '_')
    }
}
