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
    }
}
