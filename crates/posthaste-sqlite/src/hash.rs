//! Which partition a key belongs to.
//!
//! murmur2 as Kafka's Java client computes it, sign bit cleared, modulo the number of partitions. Any stable
//! hash would do here; this one lets a service that moves to Kafka find its keys in the partitions they were
//! in (F34), and lets tests against the local broker see the spread that production has.

/// The partition of a key, among so many.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions.max(1)
}

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;

fn murmur2(data: &[u8]) -> u32 {
    // Kafka's keys are shorter than 2 GB, and so are ours.
    let mut hash = SEED ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Kafka's own unit test (`UtilsTest.testMurmur2`).
    #[test]
    fn f34_keys_go_where_the_java_client_puts_them() {
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
        assert!((0..1000).all(|n: u32| partition_of(&n.to_be_bytes(), 7) < 7));
        assert_eq!(partition_of(b"x", 0), 0);
    }
}
