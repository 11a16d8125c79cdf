// catalog
