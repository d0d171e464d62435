"""The APIs of vendors, which existing clients speak. One folder for each; `identity` reads the headers that they share."""
