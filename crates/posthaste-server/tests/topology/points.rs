//! Where `topology apply` dies in a test, at which visit, and how many of its three changes are left then.

pub(crate) const POINTS: [(&str, u32, usize); 4] = [
    ("topology.begin", 1, 3),
    ("topology.sent", 1, 2),
    ("topology.between", 1, 2),
    ("topology.between", 2, 0),
];
