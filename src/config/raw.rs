//! The file as sections whose values know their place.
