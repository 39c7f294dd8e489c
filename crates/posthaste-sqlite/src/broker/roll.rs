//! Who of a group serves which partitions. Pure.
//!
//! Nobody assigns partitions. Every member sees the same list of live members and computes the same shares:
//! the members by name, the first ones get one more where it does not divide evenly. A member gives back what
//! is above its share and takes free partitions up to it. Being wrong for a moment costs nothing: a partition
//! has one owner whatever everybody thinks, and shares follow from the list alone, so nobody takes back what
//! it has just given.

/// How many partitions of a topic belong to a member.
pub(super) fn share(me: &str, members: &[String], partitions: usize) -> usize {
    let mut names: Vec<&str> = members.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let Some(rank) = names.iter().position(|name| *name == me) else { return 0 };
    partitions / names.len() + usize::from(rank < partitions % names.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_differ_by_one_at_most() {
        for members in 1..7 {
            let names: Vec<String> = (0..members).map(|n| format!("m{n}")).collect();
            for partitions in 0..20 {
                let shares: Vec<usize> = names.iter().map(|name| share(name, &names, partitions)).collect();
                assert_eq!(shares.iter().sum::<usize>(), partitions);
                let (min, max) = (shares.iter().min(), shares.iter().max());
                assert!(max.zip(min).is_some_and(|(max, min)| max - min <= 1), "{shares:?}");
            }
        }
        assert_eq!(share("stranger", &["a".to_owned()], 4), 0);
    }
}
