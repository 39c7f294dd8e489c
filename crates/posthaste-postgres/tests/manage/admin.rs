//! Status, dead letters and controls.
