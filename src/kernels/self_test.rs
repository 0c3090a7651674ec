//! Every kernel against its twin on a small case, for `octavo doctor`.
