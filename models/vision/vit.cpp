// vit
