"""The APIs of vendors, which existing clients speak. One folder for each; `identity` reads headers that they share."""
