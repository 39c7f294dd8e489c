//! The local broker: topics, consumer groups and committed offsets in one SQLite file.
